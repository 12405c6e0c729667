//! The simulator: jobs on an array under a virtual clock, over the dispatcher of a running one.
