"""``softargmax fit`` and ``softargmax predict``: classify the rows of CSV files. Model files contain no pickle.

csv_file.py    reads CSV files as text; errors name row and column
decimals.py    numbers in text, also with decimal commas
columns.py     numeric and categorical columns, and checks of their values
models.py      estimators by name, and the model file
learning.py    cross-validation, the fit, and their warnings and errors
fit.py         the command `fit`: prints a report, writes the model
predict.py     the command `predict`: classes and probabilities of new rows
"""
