//! Pictures and comparisons of lineage graphs.

pub(crate) mod difference;
pub(crate) mod dot;
mod fold;
mod layout;
pub(crate) mod svg;
#[cfg(test)]
mod tests;
