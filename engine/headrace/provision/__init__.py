"""What Spark needs beside Python packages: a Java, Delta's jars, a pyspark that fits them.

Uses the standard library alone: setup/environment.py imports it before anything is installed.
"""
