//! Tests of puts that are visible before they are stored: to which applications, and until when.

#![allow(clippy::unwrap_used, reason = "tests")]

mod place;

use place::Place;
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use tidemill_label::{App, Error, LabelRequest};

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(20);

fn put(app: &App, path: &str, bytes: &[u8]) {
    drop(app.publish(&LabelRequest::put(path, bytes)).unwrap());
}

fn errno(error: &Error) -> Option<i32> {
    match error {
        Error::Failed { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

#[test]
fn put_is_visible_at_once_and_after_it_is_stored() {
    let place = Place::new();
    let (writer, reader) = (place.app(1 << 20), place.app(1 << 16));
    let error = reader.get("tidemill:/a", NOW).unwrap_err();
    assert_eq!(errno(&error), Some(2), "{error}");
    // No agent runs that could store it.
    put(&writer, "tidemill:/a", b"one");
    assert_eq!(reader.get("tidemill:/a", NOW).unwrap(), b"one");
    put(&writer, "tidemill:/a", b"other");
    let mut some = [0; 3];
    let size = reader.get_into("tidemill:/a", &mut some, NOW).unwrap();
    assert_eq!((size, &some), (5, b"oth"));
    assert!(!place.files().join("a").exists());
    put(&writer, "tidemill:/none", b"");
    assert_eq!(reader.get("tidemill:/none", NOW).unwrap(), b"");
    // Its application has ended, and the put is visible.
    drop(writer);
    assert_eq!(reader.get("tidemill:/a", NOW).unwrap(), b"other");
    place.start_agent();
    let begun = Instant::now();
    while fs::read(place.files().join("none")).is_err()
        || fs::read(place.files().join("a")).unwrap_or_default() != b"other"
    {
        assert_eq!(reader.get("tidemill:/a", NOW).unwrap(), b"other");
        assert!(begun.elapsed() < SOON);
    }
    // From then on the file counts.
    while reader.get("tidemill:/a", NOW).unwrap() != b"by hand" {
        fs::write(place.files().join("a"), b"by hand").unwrap();
        assert!(begun.elapsed() < SOON);
    }
}

#[test]
fn get_waits_for_put_or_file() {
    let place = Place::new();
    let (writer, reader) = (place.app(1 << 20), place.app(1 << 16));
    for how in ["put", "file"] {
        let (reader, path) = (reader.clone(), format!("tidemill:/{how}"));
        let waiting = std::thread::spawn(move || reader.get(&path, SOON));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiting.is_finished());
        match how {
            "put" => put(&writer, "tidemill:/put", how.as_bytes()),
            _ => fs::write(place.files().join("being made"), how).unwrap(),
        }
        let _ = fs::rename(place.files().join("being made"), place.files().join(how));
        assert_eq!(waiting.join().unwrap().unwrap(), how.as_bytes());
    }
    let begun = Instant::now();
    let error = reader
        .get("tidemill:/never", Duration::from_millis(50))
        .unwrap_err();
    assert_eq!(errno(&error), Some(2));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    fs::create_dir(place.files().join("directory")).unwrap();
    let error = reader.get("tidemill:/directory", SOON).unwrap_err();
    assert_eq!(errno(&error), Some(21), "{error}");
    for address in ["tidemill:/../x", "a", "workspace:/r/x"] {
        let error = reader.get(address, NOW).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{address}: {error}");
    }
}

#[test]
fn latest_put_wins_across_applications() {
    let place = Place::new();
    let (one, other) = (place.app(1 << 20), place.app(1 << 20));
    put(&one, "tidemill:/a", b"one");
    let impatient = LabelRequest::put("tidemill:/a", b"other").impatient();
    assert!(matches!(other.publish(&impatient), Err(Error::Full { .. })));
    place.start_agent();
    for turn in 0..200_u32 {
        let (app, bytes) = (
            if turn % 2 == 0 { &other } else { &one },
            turn.to_le_bytes(),
        );
        put(app, "tidemill:/a", &bytes);
        assert_eq!(one.get("tidemill:/a", NOW).unwrap(), bytes);
    }
    one.flush().unwrap();
    assert_eq!(place.read("a"), 199_u32.to_le_bytes());
}

#[test]
fn failed_or_cancelled_put_is_not_visible() {
    let place = Place::new();
    let (writer, reader) = (place.app(1 << 20), place.app(1 << 16));
    let failed = writer
        .publish(&LabelRequest::put("tidemill:/none/x", b"x"))
        .unwrap();
    let back = writer
        .publish(&LabelRequest::put("tidemill:/back", b"x"))
        .unwrap();
    assert_eq!(reader.get("tidemill:/none/x", NOW).unwrap(), b"x");
    assert!(back.cancel());
    assert_eq!(
        errno(&reader.get("tidemill:/back", NOW).unwrap_err()),
        Some(2)
    );
    place.start_agent();
    assert_eq!(errno(&failed.wait().unwrap_err()), Some(2));
    assert_eq!(
        errno(&reader.get("tidemill:/none/x", NOW).unwrap_err()),
        Some(2)
    );
    let after = writer.publish(&LabelRequest::fence()).unwrap();
    let refused = writer.publish(&LabelRequest::put("tidemill:/a", b"x").after(&after));
    assert!(matches!(refused, Err(Error::Invalid(_))));
    let large = vec![0; (1 << 18) + 1];
    let refused = writer.publish(&LabelRequest::put("tidemill:/a", &large));
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

#[test]
fn get_never_mixes_bytes_of_reused_space() {
    let place = Place::new();
    place.start_agent();
    // Little space: places are reused all the time.
    let writer = place.app(1 << 16);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let reader = place.app(1 << 16);
            std::thread::spawn(move || {
                let (mut last, mut seen) = (0, 0);
                while last < 1499 {
                    let Ok(bytes) = reader.get("tidemill:/a", SOON) else {
                        continue;
                    };
                    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                    let whole = bytes.chunks(4).all(|piece| piece == number.to_le_bytes());
                    assert!(whole && bytes.len() == 12_000, "{number}");
                    assert!(number >= last, "{number} after {last}");
                    seen += u32::from(number > last);
                    last = number;
                }
                seen
            })
        })
        .collect();
    for number in 0..1500_u32 {
        put(&writer, "tidemill:/a", &number.to_le_bytes().repeat(3000));
        put(&writer, "tidemill:/b", &[0xff; 5000]);
    }
    for reader in readers {
        assert!(reader.join().unwrap() > 0);
    }
}

#[test]
fn corrupt_shared_index_never_misleads_get() {
    let place = Place::new();
    place.start_agent();
    let (writer, reader) = (place.app(1 << 20), place.app(1 << 16));
    put(&writer, "tidemill:/a", b"a");
    let shared_index = fs::File::options()
        .write(true)
        .open(place.logs().join("shared-index"))
        .unwrap();
    let mut number = 1_u64;
    let garbage: Vec<u8> = std::iter::repeat_with(|| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (number >> 56) as u8
    })
    .take(4096 * 128)
    .collect();
    shared_index.write_all_at(&garbage, 2 * 4096).unwrap();
    for number in 0..50 {
        let path = format!("tidemill:/{number}");
        put(&writer, &path, path.as_bytes());
        assert_eq!(reader.get(&path, SOON).unwrap(), path.as_bytes());
    }
    assert_eq!(reader.get("tidemill:/a", SOON).unwrap(), b"a");
    writer.flush().unwrap();
    assert_eq!(place.read("49"), b"tidemill:/49");
}

#[test]
fn get_finds_puts_beyond_capacity_of_shared_index() {
    let place = Place::new();
    place.start_agent();
    let (writer, reader) = (place.app(16 << 20), place.app(1 << 16));
    for number in 0..10_000_u32 {
        let content = number.to_le_bytes().repeat(25);
        put(&writer, &format!("tidemill:/{number}"), &content);
        if number % 7 == 0 {
            let bytes = reader.get(&format!("tidemill:/{number}"), NOW).unwrap();
            assert_eq!(bytes, content);
        }
    }
    writer.flush().unwrap();
    assert_eq!(
        fs::read_dir(place.files().join("")).unwrap().count(),
        10_000
    );
}
