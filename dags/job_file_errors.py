"""Shows the files in conf/jobs/ that no Airflow DAG can be made from as an import error of this file.

Airflow marks all DAGs of a file stale when that file has an error. The errors of job files are therefore
raised here, where there is no DAG, so that a slip in one job's file leaves the others running.
"""

from __future__ import annotations

from job_files import JobFileError, read_jobs

if errors := read_jobs()[1]:
    raise JobFileError("\n".join(map(str, errors)))
