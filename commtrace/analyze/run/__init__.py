"""Base of all analyses: the tables of a run, its parts, and calls that belong together.

frame             tables of a trace as DataFrames
analysis          a question, the function that answers it, and the columns of the answer
parts             runs that are analysed in parts
cached_per_run    results that several analyses share
matching          calls of different ranks that belong together
known             sums over calls with some unknown values
sums              sums of calls by several columns
select            rows and columns of a table by conditions in text form
carried           parameters whose data a call carries
tensor_shapes     numbers of elements of tensors
source_lines      lines of the program's files
program_folder    files relative to the folder of the program
"""
