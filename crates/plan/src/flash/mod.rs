//! A flash device: its translation layer, wear, and analysis that shares it with I/O.
