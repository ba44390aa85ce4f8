"""``softargmax train-words``: train a small language model on real text with any output layer.

corpus.py             finds files, splits training and held-out text, numbers the tokens (NumPy)
vocabulary.py         tokens, classes and their counts
settings.py           settings of a training run, and when it ends
output_layers.py      the output layers by name; a new layer is one line
torch_models.py       window and attention models
torch_training.py     optimisers, order of the data, steps, perplexity
torch_checkpoint.py   safetensors checkpoints, written atomically
torch_text.py         text generation
launch_worker.py      starts a separate process for each layer
torch_worker.py       the separate process: trains one layer
progress.py           a progress bar on a terminal
report.py             table, picture and JSON
"""
