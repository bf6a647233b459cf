"""Jobs over tables of any size, in parts, in one process or on a cluster. `truing.parts` exports the public functions.

`truing.steps` contains the steps on a block of rows, and `truing.run` contains the passes of a job. The modules of this
package run the passes over files:

    table.py      files with the same columns, read in blocks of rows
    jobs.py       passes over a table; results are kept on disk until the job is done
    results.py    the folder of results: a file for each part, and a record of the parts that are done
    detection.py  detect: the whole job
    deciding.py   decide, apply, score and learn: process new parts with an existing detector, fit or base score
    fits.py       fit and moments
    scores.py     metrics and thresholds of scores in files
    merging.py    moments from several machines, stored in files
"""
