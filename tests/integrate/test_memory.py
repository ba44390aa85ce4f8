"""The memory of a training step, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("transformers")

pytestmark = pytest.mark.slow
TOKENS, CLASSES = 2048, 32_000
STEP = f"""
import json, sys, torch, transformers
from bench.peak import peak_of
from softargmax import integrate
torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size={CLASSES}, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                  num_attention_heads=2)
model = transformers.LlamaForCausalLM(config).train()
if sys.argv[1] == "fused":
    integrate.fuse(model)
def step(n):
    tokens = torch.randint(3, {CLASSES}, (1, n))
    model.zero_grad()
    model(tokens, labels=tokens, use_cache=False).loss.backward()
step(8)
before, peak, _ = peak_of(lambda: step({TOKENS}))
print(json.dumps(peak - before))
"""


def test_a_fused_step_never_holds_the_logits() -> None:
    used = {}
    for kind in ("plain", "fused"):
        done = subprocess.run([sys.executable, "-c", STEP, kind], check=True, capture_output=True, text=True)
        used[kind] = json.loads(done.stdout)
    logits = 4 * TOKENS * CLASSES
    assert used["plain"] > logits
    assert used["fused"] <= used["plain"] - 7 * logits // 8
