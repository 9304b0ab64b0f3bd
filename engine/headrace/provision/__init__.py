"""Provision of Spark's needs beside Python packages: Java, Delta's jars, a pyspark that fits them.

Uses only the standard library: setup/environment.py imports it before anything is installed.
"""
