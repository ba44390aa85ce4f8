"""``softargmax train-words``: a small language model on real text, with any output layer, measured.

corpus.py            which files there are, what is held out, text to numbers (NumPy)
vocabulary.py        tokens, classes and their counts
settings.py          what a training run is made of, and until when it goes on
layers.py            the output layers by name: a new one is one line
torch_models.py      window and attention models
torch_training.py    optimisers, order of the data, the loop, curves
torch_checkpoint.py  safetensors files that are whole or not there
torch_text.py        text that goes on
subprocess_worker.py             each layer in a process of its own; torch_job.py is that process
progress.py          the bar on a terminal
report.py            table, picture and JSON
"""
