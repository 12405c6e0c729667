//! Decides how the mount sends a change of the namespace again when the answer was lost; `backend` sends the change (next:
//! `mount/src/fs/backend.rs`).
//!
//! A request that creates an inode carries reserved ids, by which the server recognises the request; the same holds for versions and their
//! objects. Other requests are recognised by their effect: before the mount sends such a request again, it checks whether the first attempt
//! was executed. The mount chooses the time of a change, in nanoseconds. The inode that was moved or linked and the directory that lost an
//! entry keep this time, which marks the change.

use tidemill_wire::v1::{self, Attr, name_op::Op, name_result::Result as Answer};

/// Returns the look-ups that must precede a second attempt of a change; `None` if the change can be sent again unchanged.
pub(super) fn question(op: &Op) -> Option<Vec<Op>> {
    let lookup = |parent, name: &[u8]| {
        let name = name.to_vec();
        Op::Lookup(v1::Lookup { parent, name })
    };
    Some(match op {
        Op::Unlink(op) => vec![
            Op::GetAttr(v1::GetAttr {
                ino: op.parent,
                content: false,
            }),
            lookup(op.parent, &op.name),
        ],
        Op::Rename(op) => vec![lookup(op.new_parent, &op.new_name)],
        Op::Link(op) => vec![lookup(op.parent, &op.name)],
        Op::SetXattr(op) if op.create => vec![Op::GetXattr(v1::GetXattr {
            ino: op.ino,
            name: op.name.clone(),
        })],
        Op::RemoveXattr(op) => vec![Op::GetXattr(v1::GetXattr {
            ino: op.ino,
            name: op.name.clone(),
        })],
        _ => return None,
    })
}

/// Returns the answer to a change that was executed already, as the answers to the look-ups show; `None` if it was not executed.
pub(super) fn done(op: &Op, found: &[Answer]) -> Option<Answer> {
    let nothing = Some(Answer::Empty(v1::Empty {}));
    let last = found.last()?;
    match op {
        Op::Unlink(op) => {
            let marked = matches!(&found[0], Answer::Attr(dir) if dir.mtime == op.time);
            (marked || deleted(last)).then_some(())?;
            nothing
        }
        Op::Rename(op) => {
            (attr(last)?.ctime == op.time).then_some(())?;
            nothing
        }
        Op::Link(op) => {
            let attr = attr(last)?;
            (attr.ino == op.ino && attr.ctime == op.time).then(|| last.clone())
        }
        Op::SetXattr(op) => match last {
            Answer::Bytes(kept) if kept.value == op.value => nothing,
            _ => None,
        },
        Op::RemoveXattr(_) => match last {
            Answer::Error(error) if error.errno == libc::ENODATA => nothing,
            _ => None,
        },
        _ => None,
    }
}

fn attr(answer: &Answer) -> Option<Attr> {
    match answer {
        Answer::Entry(entry) => entry.attr,
        _ => None,
    }
}

fn deleted(answer: &Answer) -> bool {
    matches!(answer, Answer::Error(error) if error.errno == libc::ENOENT)
}

/// Returns the operations that undo a request that began a version, if its answer was lost or the version is not used. The operations work
/// whether the server executes the request before or after them.
pub(super) fn undoing(op: &Op) -> Option<Vec<Op>> {
    match op {
        Op::Create(create) if create.object != 0 => {
            let (ino, object) = (create.ino, create.object);
            let unlink = v1::Unlink {
                parent: create.parent,
                name: create.name.clone(),
                directory: false,
                time: 0,
            };
            Some(vec![
                op.clone(),
                Op::Abandon(v1::Abandon { ino, object }),
                Op::Unlink(unlink),
            ])
        }
        Op::NewVersion(new) => {
            let (ino, object) = (new.ino, new.object);
            Some(vec![op.clone(), Op::Abandon(v1::Abandon { ino, object })])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ino: u64, ctime: i64) -> Answer {
        Answer::Entry(v1::Entry {
            attr: Some(Attr {
                ino,
                ctime,
                ..Attr::default()
            }),
            ..v1::Entry::default()
        })
    }

    fn error(errno: i32) -> Answer {
        Answer::Error(v1::NameError {
            errno,
            ..v1::NameError::default()
        })
    }

    #[test]
    fn change_with_lost_answer_is_recognised_by_its_time() {
        let rename = Op::Rename(v1::Rename {
            time: 7,
            ..v1::Rename::default()
        });
        assert!(done(&rename, &[entry(3, 7)]).is_some());
        assert!(done(&rename, &[entry(3, 6)]).is_none());
        assert!(done(&rename, &[error(libc::ENOENT)]).is_none());
        let link = Op::Link(v1::Link {
            ino: 3,
            time: 7,
            ..v1::Link::default()
        });
        assert_eq!(done(&link, &[entry(3, 7)]), Some(entry(3, 7)));
        assert!(done(&link, &[entry(4, 7)]).is_none());
    }

    #[test]
    fn unlink_with_lost_answer_is_done_if_name_is_absent() {
        let unlink = Op::Unlink(v1::Unlink {
            time: 7,
            ..v1::Unlink::default()
        });
        let dir = |mtime| {
            Answer::Attr(Attr {
                mtime,
                ..Attr::default()
            })
        };
        assert!(done(&unlink, &[dir(1), error(libc::ENOENT)]).is_some());
        assert!(done(&unlink, &[dir(1), entry(3, 1)]).is_none());
        // Another file has the name by now.
        assert!(done(&unlink, &[dir(7), entry(3, 1)]).is_some());
    }
}
