//! Reductions of files of the array.

use crate::context::Context;
use crate::progress::Progress;
use tidemill_kernel::reduction::{Query, Table};

pub(super) async fn reduce(
    _query: &Query,
    _paths: &[String],
    _context: &Context,
    _progress: &Progress,
) -> anyhow::Result<Table> {
    anyhow::bail!("not yet")
}
