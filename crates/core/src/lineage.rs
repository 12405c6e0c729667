//! Lineage: the graph of objects and the tasks that made them.
