//! Test of the directory store against a model: any sequence of calls returns the same results as a map of byte strings.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_model::id::ObjectId;
use tidemill_node::directory::DirectoryStore;
use tidemill_node::store::{ObjectStat, Store, StoreError};
use tidemill_sandbox::PrivateFile;

const CAPACITY: u64 = 4096;

#[derive(Clone, Debug)]
enum StoreOp {
    Create(u64),
    Write(u64, u64, Vec<u8>),
    Truncate(u64, u64),
    Seal(u64),
    Remove(u64),
    Adopt(u64, Vec<u8>),
    Reopen,
}

fn op() -> impl Strategy<Value = StoreOp> {
    let id = 1u64..5;
    let bytes = proptest::collection::vec(any::<u8>(), 0..1500);
    prop_oneof![
        1 => id.clone().prop_map(StoreOp::Create),
        4 => (id.clone(), 0u64..2000, bytes.clone()).prop_map(|(id, at, b)| StoreOp::Write(id, at, b)),
        2 => (id.clone(), 0u64..3000).prop_map(|(id, size)| StoreOp::Truncate(id, size)),
        2 => id.clone().prop_map(StoreOp::Seal),
        2 => id.clone().prop_map(StoreOp::Remove),
        1 => (id, bytes).prop_map(|(id, b)| StoreOp::Adopt(id, b)),
        1 => Just(StoreOp::Reopen),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Modelled {
    bytes: Vec<u8>,
    sealed: bool,
}

/// Result of a call to the store, as far as a caller depends on it.
#[derive(Debug, PartialEq)]
enum Came {
    Well(u64),
    NotFound,
    Sealed,
    Full,
}

fn came(result: Result<u64, StoreError>) -> Came {
    match result {
        Ok(value) => Came::Well(value),
        Err(StoreError::NotFound { .. }) => Came::NotFound,
        Err(StoreError::Sealed { .. }) => Came::Sealed,
        Err(StoreError::Full) => Came::Full,
        Err(error) => panic!("{error}"),
    }
}

fn used(model: &BTreeMap<u64, Modelled>) -> u64 {
    model.values().map(|object| object.bytes.len() as u64).sum()
}

/// Extends an object of the model to `size` bytes, unless it is sealed or the capacity is exceeded. Creates the object in any case.
fn grow(model: &mut BTreeMap<u64, Modelled>, id: u64, size: u64) -> Result<&mut Modelled, Came> {
    let used = used(model);
    let object = model.entry(id).or_insert(Modelled {
        bytes: Vec::new(),
        sealed: false,
    });
    if object.sealed {
        return Err(Came::Sealed);
    }
    let growth = size.saturating_sub(object.bytes.len() as u64);
    if growth > 0 && used + growth > CAPACITY {
        return Err(Came::Full);
    }
    Ok(object)
}

fn model(model: &mut BTreeMap<u64, Modelled>, op: &StoreOp) -> Came {
    match op {
        StoreOp::Create(id) => match grow(model, *id, 0) {
            Ok(_) => Came::Well(0),
            Err(came) => came,
        },
        StoreOp::Write(id, at, bytes) => {
            // An empty write beyond the end does not make an object longer.
            let end = at + bytes.len() as u64;
            match grow(model, *id, if bytes.is_empty() { 0 } else { end }) {
                Ok(object) => {
                    let (at, end) = (usize::try_from(*at).unwrap(), usize::try_from(end).unwrap());
                    if !bytes.is_empty() {
                        object.bytes.resize(object.bytes.len().max(end), 0);
                        object.bytes[at..end].copy_from_slice(bytes);
                    }
                    Came::Well(0)
                }
                Err(came) => came,
            }
        }
        StoreOp::Truncate(id, size) => match grow(model, *id, *size) {
            Ok(object) => {
                object.bytes.resize(usize::try_from(*size).unwrap(), 0);
                Came::Well(0)
            }
            Err(came) => came,
        },
        StoreOp::Seal(id) => match model.get_mut(id) {
            None => Came::NotFound,
            Some(object) => {
                object.sealed = true;
                Came::Well(object.bytes.len() as u64)
            }
        },
        StoreOp::Remove(id) => Came::Well(u64::from(model.remove(id).is_some())),
        StoreOp::Adopt(id, bytes) => {
            let before = model.get(id).map_or(0, |object| object.bytes.len() as u64);
            let size = bytes.len() as u64;
            if size > 0 && used(model) - before + size > CAPACITY {
                return Came::Full;
            }
            let adopted = Modelled {
                bytes: bytes.clone(),
                sealed: true,
            };
            model.insert(*id, adopted);
            Came::Well(size)
        }
        StoreOp::Reopen => Came::Well(0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn directory_store_matches_map_of_byte_strings(ops in proptest::collection::vec(op(), 1..40)) {
        let directory = tempfile::tempdir().unwrap();
        let mut store = DirectoryStore::open(directory.path(), Some(CAPACITY)).unwrap();
        let mut expected = BTreeMap::new();
        for op in &ops {
            let result = match op {
                StoreOp::Create(id) => store.create(ObjectId(*id)).map(|()| 0),
                StoreOp::Write(id, at, bytes) => store.write_at(ObjectId(*id), *at, bytes).map(|()| 0),
                StoreOp::Truncate(id, size) => store.truncate(ObjectId(*id), *size).map(|()| 0),
                StoreOp::Seal(id) => store.seal(ObjectId(*id), *id == 1),
                StoreOp::Remove(id) => store.remove(ObjectId(*id)).map(u64::from),
                StoreOp::Adopt(id, bytes) => {
                    let file = directory.path().join("made");
                    std::fs::write(&file, bytes).unwrap();
                    store.adopt(ObjectId(*id), &PrivateFile::open(&file).unwrap())
                }
                StoreOp::Reopen => {
                    store = DirectoryStore::open(directory.path(), Some(CAPACITY)).unwrap();
                    Ok(0)
                }
            };
            prop_assert_eq!(came(result), model(&mut expected, op), "{:?}", op);
            let free = store.space().unwrap().free_bytes;
            prop_assert_eq!(free, CAPACITY.saturating_sub(used(&expected)), "{:?}", op);
            for id in 1..5 {
                let found = store.open(ObjectId(id)).ok().map(|opened| {
                    let mut bytes = vec![0; 8000];
                    let count = opened.bytes.read_at(0, &mut bytes).unwrap();
                    bytes.truncate(count);
                    assert_eq!(opened.stat, ObjectStat { size: count as u64, sealed: opened.stat.sealed });
                    Modelled { bytes, sealed: opened.stat.sealed }
                });
                prop_assert_eq!(found.as_ref(), expected.get(&id), "{:?}", op);
            }
        }
    }
}
