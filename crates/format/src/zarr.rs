//! x
use crate::{Folder, Result, Span};
/// x
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Index;
#[derive(Debug)]
pub(crate) struct Lookup<'a>(std::marker::PhantomData<&'a ()>);
impl<'a> Lookup<'a> {
    pub(crate) fn new(_: &'a Index, _: &'a dyn Folder) -> Self {
        Self(std::marker::PhantomData)
    }
    pub(crate) fn find(&mut self, _: &[u64]) -> Result<Option<Span>> {
        Ok(None)
    }
}
