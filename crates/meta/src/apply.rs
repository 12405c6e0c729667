//! Passes the operations of a namespace request to the functions that execute them.

use super::fault::Fault;
use super::multi_writer;
use super::transaction::Tx;
use crate::query::execute;
use prost::Message;
use std::sync::atomic::Ordering;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Returns whether the operation changes nothing, so that a reading connection is sufficient.
pub fn only_reads(op: &v1::NameOp) -> bool {
    matches!(
        op.op,
        Some(
            Op::Lookup(_)
                | Op::Resolve(_)
                | Op::GetAttr(_)
                | Op::ReadDir(_)
                | Op::Open(_)
                | Op::Publications(_)
                | Op::GetXattr(_)
                | Op::ListXattr(_)
                | Op::StatFs(_)
                | Op::StageOutWait(_)
        ) | None
    )
}

impl Tx<'_> {
    /// Executes operations until an operation fails, or until the request's budget is used up.
    pub(crate) fn apply_all(
        &mut self,
        ops: &[v1::NameOp],
        reading: bool,
    ) -> Result<Vec<v1::NameResult>, Fault> {
        let mut results = Vec::new();
        for op in ops {
            let result = if let Err(fault) = self.budget.next() {
                Err(fault)
            } else if reading || only_reads(op) {
                self.apply(op)
            } else {
                self.apply_whole(op)?
            };
            let failed = result.is_err();
            let mut answer = result.unwrap_or_else(|fault| Answer::Error((&fault).into()));
            self.show_multi_writer(&mut answer)?;
            self.show_places(&mut answer);
            let result = v1::NameResult {
                result: Some(answer),
            };
            self.budget.answered(result.encoded_len());
            results.push(result);
            if failed {
                break;
            }
        }
        Ok(results)
    }

    /// Adds to an answer for a mount the size of a file that several mounts write, and the object under which the mount reads the file.
    fn show_multi_writer(&self, answer: &mut Answer) -> Result<(), Fault> {
        if self.session == 0 || !self.shared.parts() {
            return Ok(());
        }
        let show = |attr: Option<&mut v1::Attr>| -> Result<(), Fault> {
            if let Some(attr) = attr.filter(|attr| attr.writing)
                && let Some((version, size, mtime)) = multi_writer::seen(self.db, attr.ino)?
            {
                (attr.multi_writer, attr.size) = (version, size);
                attr.mtime = attr.mtime.max(mtime);
            }
            Ok(())
        };
        match answer {
            Answer::Attr(attr) => show(Some(attr)),
            Answer::Entry(entry) => show(entry.attr.as_mut()),
            Answer::Opened(opened) => show(opened.attr.as_mut()),
            Answer::Entries(entries) => {
                let mut entries = entries.entries.iter_mut();
                entries.try_for_each(|entry| show(entry.attr.as_mut()))
            }
            _ => Ok(()),
        }
    }

    /// Adds to an answer for a client that is not a mount the URLs of the nodes to read or write.
    fn show_places(&self, answer: &mut Answer) {
        if self.session != 0 {
            return;
        }
        let spaces = self.shared.spaces();
        let url = |node| spaces.urls.get(&node).cloned().unwrap_or_default();
        let urls = |parts: &[v1::LayoutPart]| parts.iter().map(|part| url(part.node)).collect();
        match answer {
            Answer::Opened(opened) => match (&opened.layout, &mut opened.multi_writer) {
                (Some(layout), _) => opened.part_urls = urls(&layout.parts),
                (None, Some(multi_writer)) => multi_writer.part_urls = urls(&multi_writer.parts),
                (None, None) => opened.url = url(opened.node),
            },
            Answer::MultiWriter(multi_writer) => multi_writer.part_urls = urls(&multi_writer.parts),
            _ => {}
        }
    }

    /// Executes one operation completely or not at all. The outer error means that the transaction itself can't continue.
    fn apply_whole(&mut self, op: &v1::NameOp) -> Result<Result<Answer, Fault>, Fault> {
        execute(self.db, "SAVEPOINT op", [])?;
        let noted = self.changes.len();
        let result = self.apply(op);
        if self.db.sql.is_autocommit() {
            // SQLite has ended the whole transaction, and this result has the reason.
            return result.map(Ok);
        }
        if result.is_err() {
            self.changes.truncate(noted);
            self.roll_back()?;
        }
        execute(self.db, "RELEASE op", [])?;
        Ok(result)
    }

    /// Fails for an operation that creates names while the device of the server's directory is nearly full. The remaining space is reserved
    /// for operations that free space.
    fn need_space(&self, op: &v1::NameOp) -> Result<(), Fault> {
        let makes = matches!(op.op, Some(Op::Create(_) | Op::Link(_) | Op::SetXattr(_)));
        match makes && self.shared.low.load(Ordering::Relaxed) {
            true => Err(Fault::Low),
            false => Ok(()),
        }
    }

    fn apply(&mut self, op: &v1::NameOp) -> Result<Answer, Fault> {
        self.need_space(op)?;
        match op
            .op
            .as_ref()
            .ok_or(Fault::Malformed("an operation is empty"))?
        {
            Op::Lookup(op) => self.lookup(op),
            Op::Resolve(op) => self.resolve_path(op),
            Op::GetAttr(op) => self.get_attr(op),
            Op::SetAttr(op) => self.set_attr(op),
            Op::Create(op) => self.create(op),
            Op::Link(op) => self.link(op),
            Op::Unlink(op) => self.unlink(op),
            Op::Rename(op) => self.rename(op),
            Op::ReadDir(op) => self.read_dir(op),
            Op::Open(op) => self.open(op),
            Op::NewVersion(op) => self.new_version(op),
            Op::Overflow(op) => self.overflow(op),
            Op::Seal(op) => self.seal(op),
            Op::Abandon(op) => self.abandon(op),
            Op::GetXattr(op) => self.get_xattr(op),
            Op::SetXattr(op) => self.set_xattr(op),
            Op::ListXattr(op) => self.list_xattr(op),
            Op::RemoveXattr(op) => self.remove_xattr(op),
            Op::StatFs(_) => Ok(self.stat_fs()),
            Op::Release(op) => self.release(op),
            Op::StageOutWait(op) => self.stage_out_wait(op),
            Op::Publish(op) => self.publish(op),
            Op::Publications(op) => self.read_publications(op),
            Op::Answer(_) => Err(Fault::Malformed("an answer needs a request of its own")),
            Op::Lock(_) => Err(Fault::Malformed("locks need a request of their own")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caller, SqliteNames};
    use rustix::io::Errno;

    #[test]
    fn nearly_full_server_device_refuses_new_names_and_allows_removals() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let create = |name: &str| {
            Op::Create(v1::Create {
                parent: 1,
                name: name.into(),
                kind: v1::Kind::File.into(),
                ..v1::Create::default()
            })
        };
        let unlink = Op::Unlink(v1::Unlink {
            parent: 1,
            name: b"before".to_vec(),
            ..v1::Unlink::default()
        });
        let shared = names.shared().clone();
        let [before, unlink, after] =
            [create("before"), unlink, create("after")].map(|op| v1::NameOp { op: Some(op) });
        let results = names.database().write_blocking(move |db| {
            let root = Caller::root();
            let mut tx = Tx::new(db, &shared, &root, 0, 1);
            let mut results = tx.apply_all(&[before], false)?;
            shared.low.store(true, Ordering::Relaxed);
            results.extend(tx.apply_all(&[unlink, after], false)?);
            Ok(results)
        });
        let results: Vec<_> = results.unwrap().into_iter().map(|one| one.result).collect();
        let [
            Some(Answer::Entry(_)),
            Some(gone),
            Some(Answer::Error(error)),
        ] = &results[..]
        else {
            panic!("{results:?}")
        };
        assert!(!matches!(gone, Answer::Error(_)), "{gone:?}");
        assert_eq!(error.errno, Errno::NOSPC.raw_os_error());
        assert!(error.message.contains("free some space"), "{error:?}");
    }
}
