"""Training in this process: bits, order of the data, perplexity, checkpoints, text generation."""

import math

import numpy as np
import pytest
import torch
from tests.cli.words import TEXTS, WORDS, job, run

from softargmax.cli.errors import FailedRunError
from softargmax.cli.words.launch_worker import Texts
from softargmax.cli.words.output_layers import LAYERS, LayerFactory
from softargmax.cli.words.settings import Settings, Until
from softargmax.cli.words.torch_models import LanguageModel
from softargmax.cli.words.torch_text import continued
from softargmax.cli.words.torch_training import HeldOut, Training
from softargmax.cli.words.torch_worker import JobRun

LEARNABLE = math.exp(0.98 * math.log(2) + 0.1 + 0.02 * math.log(37))  # approximate perplexity of the true distribution


def same(one, other):
    """True if all tensors have the same bits."""
    one, other = one.tensors(), other.tensors()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", sorted(set(LAYERS) - {"negative", "hierarchical", "adaptive"}))
def test_linear_layers_begin_with_the_class_frequencies(layer):
    made = LAYERS[layer](LayerFactory(8, TEXTS.counts, 0))
    p = made.log_prob(torch.zeros(8)).exp().detach().numpy()
    assert p == pytest.approx((TEXTS.counts + 1) / (TEXTS.counts + 1).sum(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_learns(tmp_path, layer):
    done = run(job(tmp_path, layer, until=Until(steps=400)))
    record = done.record()
    assert record["finished"]
    assert record["steps"] == 400
    if layer != "negative":
        assert record["perplexity"] < 1.6 * LEARNABLE < record["unigram"] / 2
        return
    assert record["perplexity"] is None
    spans, model = done.held_out.spans, done.training.model
    # The two most likely classes, without the rare words.
    likeliest = model.layer.scores(model.body(spans[:, :-1]))[..., :WORDS].topk(2).indices
    assert (likeliest == model.predicted(spans)[..., None]).any(-1).float().mean() > 0.85


@pytest.mark.parametrize("model", ["window", "attention"])
def test_perplexity_predicts_each_token_from_those_before(tmp_path, model):
    training = Training(Settings("full", model, dim=16, context=4, batch=64), *TEXTS[::2])
    held_out = HeldOut(training.settings, TEXTS.held_out, 10**9)
    before, length = training.settings.before, training.settings.length
    with torch.no_grad():
        log_p = [
            training.model.log_prob(span[: before + place])[span[before + place]]
            for span in held_out.spans[:20]
            for place in range(length)
        ]
    held_out.spans = held_out.spans[:20]
    expected = math.exp(-np.mean([float(x) for x in log_p]))
    assert held_out.perplexity(training.model) == pytest.approx(expected, rel=1e-5)
    assert held_out.tokens == len(log_p)


@pytest.mark.parametrize("model", ["window", "attention"])
def test_predictions_depend_only_on_the_tokens_before(model):
    settings = Settings("full", model, dim=16, context=8)
    body = LanguageModel(settings, TEXTS.counts).body
    tokens = torch.arange(settings.width - 1)[None] % 50
    before = body(tokens)
    assert before.shape == (1, settings.length, 16)
    for place in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[0, place] += 1
        seen = (body(changed) != before).any(-1)[0]
        reach = [i for i in range(settings.length) if 0 <= i + settings.before - 1 - place < 8]
        assert seen.nonzero().flatten().tolist() == reach


def test_attention_model_uses_positions():
    body = LanguageModel(Settings("full", "attention", dim=16, context=8), TEXTS.counts).body
    same_token = torch.zeros(1, 8, dtype=torch.int64)
    assert torch.allclose(body(same_token)[0, 0], body(same_token)[0, 7], atol=1e-5)
    torch.nn.init.normal_(body.position)
    assert not torch.allclose(body(same_token)[0, 0], body(same_token)[0, 7], atol=1e-1)


def test_optimisers_are_built_without_a_draw():
    training = Training(Settings("sampled", dim=16, context=4, batch=64), *TEXTS[::2])
    assert training.model.layer.step == 0
    sparse = {id(p) for p in training.optimisers["sparse_adam"].param_groups[0]["params"]}
    names = {name for name, p in training.model.named_parameters() if id(p) in sparse}
    assert names == {"body.embedding.weight", "layer.weight", "layer.bias"}


def test_held_out_spans_are_spread_over_the_text():
    settings = Settings("full", context=4)
    text = np.arange(1000, dtype=np.int32)
    held_out = HeldOut(settings, text, 100)
    assert held_out.spans.shape == (6, 20)
    assert held_out.tokens == 96
    assert held_out.spans[:, 0].tolist() == [0, 196, 392, 588, 784, 980]
    assert (held_out.spans.diff() == 1).all()
    every = HeldOut(settings, text, 10**9)
    # 62 sequences predict 16 tokens each. 8 tokens are not predicted: the first 4, and 4 between sequences.
    assert every.tokens == 992
    assert (every.spans[:, 4:].flatten().unique(return_counts=True)[1] == 1).all()


def test_unigram_perplexity(tmp_path):
    held_out = HeldOut(Settings("full", context=4), TEXTS.held_out, 300)
    p = (TEXTS.counts + 1) / (TEXTS.counts + 1).sum()
    targets = held_out.spans[:, 4:].flatten().tolist()
    assert held_out.unigram(TEXTS.counts) == pytest.approx(math.exp(-np.mean([math.log(p[y]) for y in targets])))


@pytest.mark.parametrize("model", ["window", "attention"])
def test_an_epoch_has_every_span_once(model):
    text = np.arange(1003, dtype=np.int32)
    training = Training(Settings("full", model, dim=16, context=4, batch=64), text, np.ones(1003, np.int64))
    epochs = [
        torch.cat([training.batch(epoch * training.per_epoch + step) for step in range(training.per_epoch)])
        for epoch in range(3)
    ]
    for spans in epochs:
        assert (spans.diff() == 1).all()
        predicted = training.model.predicted(spans).flatten()
        assert len(predicted.unique()) == len(predicted) >= 1003 - 64 - 2 * 16 - 4
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0] - epochs[0].min(), epochs[1] - epochs[1].min())
    shifts = {int(spans.min() % training.settings.length) for spans in epochs}
    assert len(shifts) > 1
    again = Training(training.settings, text, np.ones(1003, np.int64))
    # A batch depends only on its step, not on the batches before it.
    assert torch.equal(again.batch(2 * training.per_epoch), epochs[2][: training.rows])


@pytest.mark.parametrize("length", [20, 21, 35, 36, 37, 52])
def test_texts_of_few_spans(tmp_path, length):
    training = Training(
        Settings("full", dim=8, context=4), np.arange(length, dtype=np.int32), np.ones(length, np.int64)
    )
    for step in range(20):
        spans = training.batch(step)
        assert spans.shape == (max(1, (length - 4) // 16 - 1), 20)


@pytest.mark.parametrize("part", [0, 1])
def test_texts_that_are_too_short(tmp_path, part):
    short = TEXTS._replace(**{Texts._fields[part]: TEXTS[part][:19]})
    with pytest.raises(FailedRunError, match=r"expected at least 20 tokens .* for --context 4, got 19"):
        JobRun(job(tmp_path), short)


def test_training_ends_after_steps_epochs_or_seconds():
    assert Until(steps=10).share(5, 100, 1e9) == 0.5
    assert Until(epochs=2).share(100, 100, 1e9) == 0.5
    assert Until(seconds=8).share(10**9, 1, 2.0) == 0.25


def test_target_sampling_has_the_targets_of_its_part(tmp_path):
    done = run(job(tmp_path, "target", until=Until(steps=20)))
    training = done.training
    parts = [
        torch.cat([training.model.predicted(training.batch(i)).flatten() for i in range(*ends)])
        for ends in ((0, 16), (16, 32))
    ]
    assert torch.equal(training.model.layer.candidates, parts[1].unique())
    assert not torch.equal(parts[0].unique(), parts[1].unique())


def test_nonfinite_loss_is_an_error(tmp_path):
    with pytest.raises(
        FailedRunError, match=r"the loss of layer full is (inf|nan) at step \d+; a smaller --lr may help"
    ):
        run(job(tmp_path, lr=1e38, until=Until(steps=50)))
    assert not list(tmp_path.iterdir())


# --- bits --------------------------------------------------------------------------------------------------------


def test_same_seed_gives_the_same_bits(tmp_path):
    torch.manual_seed(5)
    one = run(job(tmp_path, "sampled"))
    torch.manual_seed(6)
    assert same(one.training, run(job(tmp_path, "sampled")).training)
    other = run(job(tmp_path, "sampled", seed=1))
    assert not any(
        torch.equal(a, b)
        for a, b in zip(one.training.model.body.parameters(), other.training.model.body.parameters(), strict=True)
    )


@pytest.mark.parametrize(("layer", "model"), [*((layer, "window") for layer in LAYERS), ("full", "attention")])
def test_resumed_run_has_the_bits_of_an_uninterrupted_run(tmp_path, layer, model):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    whole = run(job(tmp_path / "one", layer, model=model, until=Until(steps=43)))
    # This run saves a checkpoint after every step, which does not change the training.
    run(job(tmp_path / "other", layer, model=model, until=Until(steps=19), save_every=1e-9))
    resumed = run(job(tmp_path / "other", layer, model=model, until=Until(steps=43), resume=True))
    assert resumed.began == 19
    assert same(whole.training, resumed.training)
    assert whole.perplexity == resumed.perplexity
    record = resumed.record()
    assert record["steps"] == 43
    assert record["seconds"] == resumed.training.seconds > resumed.kept["curve"][0]["seconds"] > 0
    steps = [point["step"] for point in record["curve"]]
    assert steps == sorted(set(steps))
    assert {19, 43} <= set(steps)


def test_measuring_changes_no_bit(tmp_path, monkeypatch):
    one = run(job(tmp_path, "sampled"))
    monkeypatch.setattr("softargmax.cli.words.torch_worker.FIRST", 0.0)
    monkeypatch.setattr("softargmax.cli.words.torch_worker.GROWTH", 0.0)
    other = run(job(tmp_path, "sampled"))
    assert len(one.kept["curve"]) < len(other.kept["curve"]) == 40
    assert same(one.training, other.training)


def test_finished_job_is_not_trained_again(tmp_path):
    run(job(tmp_path))
    before = (tmp_path / "full.safetensors").stat().st_mtime_ns
    again = run(job(tmp_path, resume=True))
    assert again.record()["resumed_at"] == again.record()["steps"] == 40
    assert (tmp_path / "full.safetensors").stat().st_mtime_ns == before


def test_stopped_run_has_saved_its_state(tmp_path):
    calls = iter([False, False, True])
    stopped = JobRun(job(tmp_path), TEXTS)
    stopped.go(lambda: next(calls))
    assert stopped.record()["steps"] == 3
    assert not stopped.record()["finished"]
    assert not stopped.record()["curve"]  # a stopped run ends without measuring the perplexity
    assert JobRun(job(tmp_path, resume=True), TEXTS).began == 3


# --- generated text ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["window", "attention"])
def test_generated_text_depends_on_seed_and_position(tmp_path, model):
    done = run(job(tmp_path, model=model, until=Until(steps=400)))
    found = [continued(done.training.model, [3], 60, 0.9, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert continued(done.training.model, [3], 20, 0.9, 0) == found[0][:20]
    assert continued(done.training.model, [3], 0, 0.9, 0) == []
    usual = np.isin(np.diff([3, *found[0]]) % WORDS, (1, 2))
    assert usual.mean() > 0.85
    left = continued(done.training.model, [3], 60, 0.9, 0, without=[4, 5, 6])
    assert not {4, 5, 6} & set(left)


def test_small_top_p_draws_the_most_probable_class(tmp_path):
    model = run(job(tmp_path)).training.model
    tokens = [0, 1, 2, 3]
    for token in continued(model, tokens, 10, 1e-9, 0):
        assert token == int(model.log_prob(torch.tensor(tokens)).argmax())
        tokens.append(token)
