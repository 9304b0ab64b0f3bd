"""The folder of a benchmark's job."""

import shutil

from headrace.config import load_job


def new_home(root, job, text):
    """Make a new folder with the project's cluster profiles and the file `text` of a job; return the job's configuration."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "conf/jobs").mkdir(parents=True)
    shutil.copytree("conf/clusters", root / "conf/clusters")
    (root / f"conf/jobs/{job}.yaml").write_text(text)
    return load_job(job, home=root)
