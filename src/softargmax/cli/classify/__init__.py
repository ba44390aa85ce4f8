"""``softargmax fit`` and ``softargmax predict``: a classifier of the rows of a CSV file, kept in a file without pickle.

source.py      CSV files as words, and what is said of a file that is none
decimals.py    words that are numbers, decimal commas among them
columns.py     which columns are numbers and which are categories, and what none of them may hold
models.py      estimators by name, what surrounds them, the file that keeps them
learning.py    cross-validation and the fit, what is warned of meanwhile, why one fails
fit.py         the first command: a report, the model
predict.py     the second one: classes and probabilities of new rows
"""
