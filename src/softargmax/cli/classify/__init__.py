"""``softargmax fit`` and ``softargmax predict``: a classifier of the rows of a CSV file, kept in a file without pickle.

columns.py     CSV files: which columns are numbers and which are categories, and what none of them may hold
models.py      estimators by name, what surrounds them, the file that keeps them
fit.py         the first command: cross-validation, a report, the model
predict.py     the second one: classes and probabilities of new rows
"""
