//! Suggestions for a path that does not exist. The server makes suggestions only for paths that a person has written, since a suggestion
//! requires all names of a directory.

use super::fault::Fault;
use super::transaction::{Tx, shown};
use tidemill_model::similar_names::{PARTS_MAX, nearest_path};

/// Maximum number of names in a directory that are searched for a suggestion.
pub(crate) const BESIDE_MAX: u32 = 4096;

impl Tx<'_> {
    /// Returns names in the directory that contains a path, if the caller may list the directory; possibly not all names.
    pub fn beside(&self, path: &str) -> Vec<String> {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let names = self.names_in(directory, BESIDE_MAX);
        let names = names.unwrap_or_default().into_iter();
        names.map(|(name, _)| name).collect()
    }

    /// Adds to the fault for a missing path a suggestion, or the deepest existing directory of the path.
    pub fn advised(&self, path: &[u8], fault: Fault) -> Fault {
        let (Fault::NotFound(what), Ok(path)) = (&fault, std::str::from_utf8(path)) else {
            return fault;
        };
        if let Some(target) = self.absolute_link(path.as_bytes()) {
            let advice = format!(
                "a symbolic link in the path leads to {}, and absolute links begin at the root of the cluster here: make it relative",
                shown(&target)
            );
            return Fault::Misspelt(what.clone(), advice);
        }
        if path.matches('/').count() > PARTS_MAX {
            return fault;
        }
        let there = |path: &str| {
            !matches!(
                self.resolve(path.as_bytes(), false),
                Err(Fault::NotFound(_))
            )
        };
        let advice = match nearest_path(path, there, |path| self.beside(path)) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!(
                "`tidemill ls {}` lists the existing names",
                self.deepest(path)
            ),
        };
        Fault::Misspelt(what.clone(), advice)
    }

    /// Returns the deepest existing directory of a path.
    fn deepest<'a>(&self, path: &'a str) -> &'a str {
        let mut directory = path.trim_end_matches('/');
        loop {
            directory = directory.rsplit_once('/').map_or("", |(above, _)| above);
            let found = self.resolve(directory.as_bytes(), true);
            if directory.is_empty() || found.is_ok_and(|vnode| vnode.is_dir()) {
                break;
            }
        }
        if directory.is_empty() { "/" } else { directory }
    }
}

#[cfg(test)]
mod tests {
    use crate::transaction::Tx;
    use crate::{Caller, SqliteNames};
    use tidemill_wire::v1::{self, name_op::Op};

    #[test]
    fn resolve_error_contains_target_of_dangling_absolute_link() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let shared = names.shared().clone();
        let link = |name: &str, target: &str| v1::NameOp {
            op: Some(Op::Create(v1::Create {
                parent: 1,
                name: name.into(),
                kind: v1::Kind::Symlink.into(),
                target: target.into(),
                ..v1::Create::default()
            })),
        };
        let links = [link("away", "/mnt/raw"), link("near", "raw")];
        let seen = names.database().write_blocking(move |db| {
            let root = Caller::root();
            let mut tx = Tx::new(db, &shared, &root, 0, 1);
            tx.apply_all(&links, false)?;
            let fault = |path: &[u8]| {
                let fault = tx.resolve(path, true).unwrap_err();
                tx.advised(path, fault).to_string()
            };
            Ok([fault(b"/away/a"), fault(b"/near/a")])
        });
        let [absolute, relative] = seen.unwrap();
        assert!(
            absolute.contains("leads to /mnt/raw, and absolute"),
            "{absolute}"
        );
        assert!(!relative.contains("absolute"), "{relative}");
    }
}
