"""Tables in: rows of a file or a data frame become series of numbers on a time grid.

`conca.data.panel.read_panel` is the door; `scaling`, `split` and `calendar` prepare what it returns for a model.
"""
