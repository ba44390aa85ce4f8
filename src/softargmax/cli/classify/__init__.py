"""``softargmax fit`` and ``softargmax predict``: classify the rows of CSV files. Model files contain no pickle.

csv_file.py           CSV files as tables of text; errors name row and column
decimals.py           numbers in text, with decimal points or commas
columns.py            numeric and categorical columns, and checks of their values
models.py             estimators by name, and the model file
cross_validation.py   cross-validation, the fit, and their warnings and errors
fit.py                the command `fit`: prints a report, writes the model
choices.py            `fit --choices`: a model of choices among alternatives
predict.py            the command `predict`: classes and probabilities of new rows
"""
