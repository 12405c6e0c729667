//! Reductions against a plain model.
