"""Classes that users subclass, and values that they declare. User code imports the names from `headrace`."""
