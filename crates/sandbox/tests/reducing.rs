//! Tests children that reduce arrays: their answers, and the handling of children that die.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs::File;
use std::io::Write;
use support::{LAUNCHER, Place, is_root};
use tidemill_compute::array::{ArrayOperation, ArraySpec, Codec, Dtype};
use tidemill_compute::work::{ArrayReduction, StoredBytes};
use tidemill_sandbox::User;
use tidemill_sandbox::reduce_workers::{ReduceError, Reducing};

fn spec(operation: ArrayOperation, codecs: Vec<Codec>) -> ArraySpec {
    ArraySpec {
        operation,
        dtype: Dtype::Int32,
        big_endian: false,
        shape: Some(vec![1000]),
        fortran: false,
        axes: None,
        selection: None,
        codecs,
        missing: None,
    }
}

/// Returns a file with 5 bytes before 1000 numbers.
fn file() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"12345").unwrap();
    for value in 0..1000_i32 {
        file.write_all(&value.to_le_bytes()).unwrap();
    }
    file
}

fn held() -> Vec<StoredBytes> {
    vec![StoredBytes::Held {
        offset: 5,
        length: 4000,
    }]
}

fn start(place: &Place) -> Reducing {
    let user = is_root().then_some(User {
        uid: 4_000_001,
        gid: 4_000_001,
    });
    LAUNCHER.start_reducing(&place.path("r"), user).unwrap()
}

#[test]
fn reducer_child_serves_many_different_orders() {
    let place = Place::new();
    let mut child = start(&place);
    let (file, pid) = (file(), child.pid());
    for _ in 0..3 {
        let order = ArrayReduction {
            spec: spec(ArrayOperation::Sum, vec![]),
            pieces: held(),
        };
        let found = child.reduce(&order, &file, &[]).unwrap();
        assert_eq!(found.bytes, 499_500_i32.to_le_bytes());
        // The bytes are not zlib.
        let order = ArrayReduction {
            spec: spec(ArrayOperation::Sum, vec![Codec::Zlib]),
            pieces: held(),
        };
        let refused = child.reduce(&order, &file, &[]).unwrap_err();
        assert!(
            matches!(&refused, ReduceError::Refused(why) if why.of_data),
            "{refused}"
        );
        // The pieces come from several sources.
        let order = ArrayReduction {
            spec: spec(ArrayOperation::Max, vec![]),
            pieces: vec![
                StoredBytes::Held {
                    offset: 5,
                    length: 1998,
                },
                StoredBytes::Sent(1002),
                StoredBytes::Hole(600),
                StoredBytes::Held {
                    offset: 5,
                    length: 400,
                },
            ],
        };
        let sent = [&[0, 0][..], &7_000_i32.to_le_bytes().repeat(250)].concat();
        let found = child.reduce(&order, &file, &sent).unwrap();
        assert_eq!(found.bytes, 7_000_i32.to_le_bytes());
    }
    assert_eq!(child.pid(), pid);
    drop(child);
    assert!(!place.path("r").exists());
}

#[test]
fn killed_reducer_reports_error_and_next_reducer_works() {
    let place = Place::new();
    let mut child = start(&place);
    let pid = child.pid().unwrap();
    // SAFETY: the number is that of a child that has not been waited for.
    unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    let order = ArrayReduction {
        spec: spec(ArrayOperation::Count, vec![]),
        pieces: held(),
    };
    let ended = child.reduce(&order, &file(), &[]).unwrap_err();
    assert!(
        matches!(&ended, ReduceError::Ended(why) if why.contains("killed")),
        "{ended}"
    );
    assert!(!child.is_there());
    drop(child);
    let mut next = start(&place);
    assert_eq!(next.reduce(&order, &file(), &[]).unwrap().counts, [1000]);
}

#[test]
fn invalid_reduction_orders_are_refused_before_child_starts() {
    let place = Place::new();
    let mut child = start(&place);
    let huge = ArrayReduction {
        spec: spec(ArrayOperation::Sum, vec![]),
        pieces: vec![StoredBytes::Hole(u64::MAX), StoredBytes::Hole(7)],
    };
    let refused = child.reduce(&huge, &file(), &[]).unwrap_err();
    assert!(matches!(refused, ReduceError::Refused(_)), "{refused}");
    let short = ArrayReduction {
        spec: spec(ArrayOperation::Sum, vec![]),
        pieces: vec![StoredBytes::Sent(4000)],
    };
    assert!(child.reduce(&short, &file(), &[1]).is_err());
    assert!(child.is_there());
}
