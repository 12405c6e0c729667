//! Compares the namespace with what elements hold, both ways: objects that nothing knows, and files whose object is
//! missing, has another length or is not sealed.
//!
//! Everything goes on meanwhile, so what is found is looked at once more before it is told.

use crate::array::Array;
use crate::clock;
use crate::damage;
use crate::names::holdings::{self, Held};
use crate::names::parts;
use crate::names::{Fault, SqliteNames, path_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidemill_client::objects::{Objects, Remote};
use tidemill_client::{Error, Trust};
use tidemill_core::id::{ElementId, ObjectId};
use tidemill_core::layout::PartOf;
use tidemill_wire::route::{self, Listed, SEAL_ALL_MAX, SealBody};
use tidemill_wire::v1::{self, check_reply::Message};
use tokio::sync::mpsc::Sender;
use tonic::Status;

/// Between the first look and the second: longer than a seal or a removal is on its way.
const REST: Duration = Duration::from_secs(3);
/// How long an element may take to list one of its folders.
const LIST_MAX: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    names: Arc<SqliteNames>,
    array: Arc<Array>,
    objects: Objects,
}

/// To where findings go.
pub(crate) type Findings = Sender<Result<v1::CheckReply, Status>>;

/// What may be wrong with one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspicion {
    Orphan(u64),
    Missing(Held),
    Length(Held, u64),
    Unsealed(Held, u64),
}

type Suspicions = BTreeMap<u64, Suspicion>;

/// One check.
struct Run<'a> {
    check: &'a Check,
    request: v1::CheckRequest,
    found: &'a Findings,
    checked: v1::Checked,
}

impl Check {
    pub(crate) fn new(names: Arc<SqliteNames>, array: Arc<Array>, trust: &Trust) -> Self {
        Self {
            names,
            array,
            objects: Objects::new(Some(trust)),
        }
    }

    /// Checks all elements; tells what is found, and at last how much was looked at.
    pub(crate) async fn run(&self, request: v1::CheckRequest, found: Findings) {
        let mut run = Run {
            check: self,
            request,
            found: &found,
            checked: v1::Checked::default(),
        };
        for element in self.array.elements() {
            if let Err(why) = run.element(element.element).await {
                let finding = v1::Finding {
                    kind: "unchecked".into(),
                    element: element.element,
                    text: why,
                    ..v1::Finding::default()
                };
                run.tell(finding).await;
            }
        }
        let message = Some(Message::Checked(run.checked));
        // Who asked may have gone away.
        let _ = found.send(Ok(v1::CheckReply { message })).await;
    }

    async fn list(&self, element: u32, folder: u32) -> Result<Vec<Listed>, String> {
        let away = || format!("element {element} is away");
        let remote = Remote {
            element: ElementId(element),
            url: self.array.url(element).ok_or_else(away)?.into(),
            object: ObjectId::STATUS,
            capability: self.names.shared().sign_for_listing(element),
        };
        let listed = tokio::time::timeout(LIST_MAX, self.objects.list(&remote, folder)).await;
        let silent = |_| format!("element {element} does not answer");
        listed
            .map_err(silent)?
            .map_err(|error: Error| error.to_string())
    }
}

fn text(fault: Fault) -> String {
    fault.to_string()
}

impl Run<'_> {
    async fn tell(&self, finding: v1::Finding) {
        let message = Some(Message::Finding(finding));
        let _ = self.found.send(Ok(v1::CheckReply { message })).await;
    }

    async fn element(&mut self, element: u32) -> Result<(), String> {
        let database = self.check.names.database();
        let held = database
            .read(|db| holdings::of_element(db, element))
            .map_err(text)?;
        self.checked.files += held.len() as u64;
        let held = by_folder(held);
        let mut first = Suspicions::new();
        for folder in 0..route::FOLDERS {
            let listed = self.check.list(element, folder).await?;
            self.checked.objects += listed.len() as u64;
            first.extend(self.compare(element, &listed, held.get(&folder))?);
        }
        self.checked.elements += 1;
        if first.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(REST).await;
        let held = database
            .read(|db| holdings::of_element(db, element))
            .map_err(text)?;
        let held = by_folder(held);
        let folders: BTreeSet<u32> = first.keys().map(|&object| folder_of(object)).collect();
        let mut found = Suspicions::new();
        for folder in folders {
            let listed = self.check.list(element, folder).await?;
            let mut again = self.compare(element, &listed, held.get(&folder))?;
            again.retain(|object, _| first.contains_key(object));
            found.extend(again);
        }
        let mended = if self.request.mend {
            self.mend(element, &found).await?
        } else {
            BTreeSet::new()
        };
        for (object, suspicion) in found {
            let mended = mended.contains(&object);
            self.tell(self.finding(element, object, suspicion, mended))
                .await;
        }
        Ok(())
    }

    /// Compares what is in one folder of an element with what should be there.
    fn compare(
        &self,
        element: u32,
        listed: &[Listed],
        held: Option<&BTreeMap<u64, Held>>,
    ) -> Result<Suspicions, String> {
        let mut suspicions: Suspicions = held
            .into_iter()
            .flatten()
            .map(|(&object, &held)| (object, Suspicion::Missing(held)))
            .collect();
        let mut others = Vec::new();
        for one in listed {
            let Some(&file) = held.and_then(|held| held.get(&one.object)) else {
                if one.age_ns >= self.request.age_ns_min {
                    others.push(one.object);
                }
                continue;
            };
            if one.size != file.size {
                suspicions.insert(one.object, Suspicion::Length(file, one.size));
            } else if !one.sealed {
                suspicions.insert(one.object, Suspicion::Unsealed(file, one.size));
            } else {
                suspicions.remove(&one.object);
            }
        }
        let names = &self.check.names;
        let unknown = names
            .database()
            .read(|db| holdings::unknown(db, names.shared(), element, &others))
            .map_err(text)?;
        let sizes = listed.iter().map(|one| (one.object, one.size));
        let orphans = sizes.filter(|(object, _)| unknown.contains(object));
        suspicions.extend(orphans.map(|(object, size)| (object, Suspicion::Orphan(size))));
        Ok(suspicions)
    }

    /// Mends what can be; gives the objects.
    async fn mend(&self, element: u32, found: &Suspicions) -> Result<BTreeSet<u64>, String> {
        let orphans: Vec<u64> = found
            .iter()
            .filter(|(_, suspicion)| matches!(suspicion, Suspicion::Orphan(_)))
            .map(|(&object, _)| object)
            .collect();
        let names = &self.check.names;
        let shared = names.shared().clone();
        let removed = names.database().write(move |db| {
            holdings::remove_unknown(db, &shared, element, &orphans, clock::now_ns())
        });
        let mut mended = removed.await.map_err(text)?;
        let open: Vec<(u64, SealBody)> = found
            .iter()
            .filter_map(|(&object, suspicion)| match suspicion {
                Suspicion::Unsealed(held, _) => Some((object, self.body(object, held))),
                _ => None,
            })
            .collect();
        for batch in open.chunks(SEAL_ALL_MAX) {
            let results = self
                .check
                .array
                .seal_all(&self.check.objects, element, batch);
            for result in results.await? {
                if result.status == 200 {
                    mended.insert(result.object);
                }
            }
        }
        Ok(mended)
    }

    fn path(&self, held: &Held) -> Vec<u8> {
        let path = |db: &rusqlite::Connection| path_of(db, held.ino);
        let path = self.check.names.database().read(path);
        path.ok().flatten().unwrap_or_default()
    }

    /// What is wrong with an object that an element has set aside.
    fn damage(&self, object: u64, element: u32) -> Option<String> {
        let of = |db: &rusqlite::Connection| damage::of(db, object);
        let damaged = self.check.names.database().read(of).ok()?;
        let mut damaged = damaged.into_iter();
        damaged.find_map(|(on, what)| (on == element).then_some(what))
    }

    fn body(&self, object: u64, held: &Held) -> SealBody {
        let part = |db: &rusqlite::Connection| parts::part_of(db, object);
        let part = self.check.names.database().read(part).ok().flatten();
        SealBody {
            inode: held.ino,
            path: String::from_utf8_lossy(&self.path(held)).into_owned(),
            uid: held.owner.0,
            gid: held.owner.1,
            mode: held.mode,
            durable: false,
            lost: true,
            part: part.map(PartOf::to_bytes),
        }
    }

    fn finding(
        &self,
        element: u32,
        object: u64,
        suspicion: Suspicion,
        mended: bool,
    ) -> v1::Finding {
        let (kind, held, size, text) = match suspicion {
            Suspicion::Orphan(size) => {
                let text = "no name, version, job or writer knows it".to_owned();
                ("orphan", None, size, text)
            }
            Suspicion::Missing(held) => match self.damage(object, element) {
                Some(what) => ("damaged", Some(held), 0, format!("it {what}")),
                None => ("missing", Some(held), 0, "it is not there".to_owned()),
            },
            Suspicion::Length(held, size) => {
                let text = format!("it has {size} bytes there, the file {}", held.size);
                ("length", Some(held), size, text)
            }
            Suspicion::Unsealed(held, size) => {
                let text = "it can still be written to there".to_owned();
                ("unsealed", Some(held), size, text)
            }
        };
        v1::Finding {
            kind: kind.into(),
            element,
            object,
            size,
            path: held.map_or_else(Vec::new, |held| self.path(&held)),
            text,
            mended,
        }
    }
}

/// The objects of files, by the folder that their element keeps them in.
fn by_folder(held: BTreeMap<u64, Held>) -> BTreeMap<u32, BTreeMap<u64, Held>> {
    let mut folders: BTreeMap<u32, BTreeMap<u64, Held>> = BTreeMap::new();
    for (object, file) in held {
        let folder = folders.entry(folder_of(object)).or_default();
        folder.insert(object, file);
    }
    folders
}

/// The folder that an element keeps an object in.
fn folder_of(object: u64) -> u32 {
    u32::try_from(object % u64::from(route::FOLDERS)).unwrap_or_default()
}
