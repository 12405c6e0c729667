//! Tests of labels in a directory of this host, for which the agent needs no cluster.

#![allow(clippy::unwrap_used, reason = "tests")]

mod place;

use place::Place;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tidemill_label::{
    App, Error, FileAnalysis, Intent, LabelRequest, RegistrationOptions, Ticket, apps, wait_all,
    wait_any,
};

fn with_agent() -> (Place, App) {
    let place = Place::new();
    place.start_agent();
    let app = place.app(1 << 20);
    (place, app)
}

#[test]
fn labels_write_read_rename_and_remove_in_order() {
    let (place, app) = with_agent();
    let write = |path, offset, bytes: &[u8]| {
        app.publish(&LabelRequest::write(path, offset, bytes))
            .unwrap()
    };
    let first = write("tidemill:/a", 0, b"hello");
    drop(write("tidemill:/a", 5, b" world"));
    let read = app
        .publish(&LabelRequest::read("tidemill:/a", 3, 100))
        .unwrap();
    let end = app
        .publish(&LabelRequest::append("tidemill:/a", b"!"))
        .unwrap();
    assert_eq!(read.wait().unwrap(), b"lo world");
    first.wait().unwrap();
    end.wait().unwrap();
    assert_eq!(place.read("a"), b"hello world!");
    drop(
        app.publish(&LabelRequest::rename("tidemill:/a", "tidemill:/b"))
            .unwrap(),
    );
    let path = place.files().join("b");
    let cut = LabelRequest::write(path.to_str().unwrap(), 0, b"new")
        .truncate()
        .durable();
    app.publish_wait(&cut).unwrap();
    assert_eq!(place.read("b"), b"new");
    app.publish_wait(&LabelRequest::delete("tidemill:/b"))
        .unwrap();
    assert!(fs::read_dir(place.files()).unwrap().next().is_none());
}

#[test]
fn failed_label_reports_reason_and_others_succeed() {
    let (place, app) = with_agent();
    fs::create_dir(place.files().join("directory")).unwrap();
    let labels = [
        LabelRequest::write("tidemill:/none/x", 0, b"x"),
        LabelRequest::write("tidemill:/directory", 0, b"x"),
        LabelRequest::read("tidemill:/none", 0, 1),
        LabelRequest::delete("tidemill:/none"),
        LabelRequest::rename("tidemill:/none", "tidemill:/other"),
        LabelRequest::copy("tidemill:/none", "tidemill:/other"),
        LabelRequest::copy("tidemill:/directory", "tidemill:/other"),
        LabelRequest::write("tidemill:/fine", 0, b"fine"),
    ];
    let tickets = labels
        .iter()
        .map(|label| app.publish(label).unwrap())
        .collect();
    let reported: Vec<_> = wait_all(tickets)
        .into_iter()
        .map(|outcome| outcome.map_err(|error| error.to_string()))
        .collect();
    let root = "tidemill:/";
    let none = "No such file or directory (os error 2)";
    let expected = [
        format!("can't write {root}none/x: {none}"),
        format!("can't write {root}directory: Is a directory (os error 21)"),
        format!("can't read {root}none: {none}"),
        format!("can't remove {root}none: {none}"),
        format!("can't rename {root}none: {none}"),
        format!("can't copy {root}none: {none}"),
        format!("can't copy {root}directory: Invalid argument (os error 22)"),
    ];
    for (reported, expected) in reported.iter().zip(&expected) {
        assert_eq!(reported.as_ref().unwrap_err(), expected);
    }
    assert!(reported[7].is_ok());
    assert_eq!(place.read("fine"), b"fine");
    let outside = format!("{}/../logs/x", place.files().display());
    for address in [
        "a",
        "",
        "tidemill:a",
        "tidemill:/../x",
        "/etc/passwd",
        &outside,
        "s3://x/y",
        "tidemill:/a\0b",
    ] {
        let error = app
            .publish(&LabelRequest::write(address, 0, b"x"))
            .unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{address}: {error}");
    }
    let beyond = LabelRequest::write("tidemill:/x", u64::MAX - 1, b"xxxx");
    assert!(matches!(app.publish(&beyond), Err(Error::Invalid(_))));
    let long = format!("tidemill:/{}", "x".repeat(8193));
    for wrong in [
        LabelRequest::read("tidemill:/x", 0, (1 << 30) + 1),
        LabelRequest::read("tidemill:/x", i64::MAX as u64, 1),
        LabelRequest::copy("tidemill:/x", "tidemill:///x"),
        LabelRequest::rename("tidemill:/x", "/etc/passwd"),
        LabelRequest::write(&long, 0, b"x"),
        // No cluster is mounted there.
        LabelRequest::job("name = \"x\";"),
        LabelRequest::analyse(&FileAnalysis::default()),
    ] {
        let refused = app.publish(&wrong);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{wrong:?}");
    }
}

#[test]
fn label_larger_than_log_is_split_and_waits_for_space() {
    let (place, app) = with_agent();
    let bytes: Vec<u8> = (0..10_000_000_u32)
        .map(|n| n.wrapping_mul(7).to_le_bytes()[1])
        .collect();
    app.publish_wait(&LabelRequest::write("tidemill:/big", 3, &bytes))
        .unwrap();
    assert_eq!(place.read("big")[3..], bytes);
    let read = app
        .publish(&LabelRequest::read("tidemill:/big", 0, 300_000))
        .unwrap();
    assert_eq!(read.wait().unwrap()[3..], bytes[..299_997]);
}

#[test]
fn impatient_label_fails_if_log_is_full() {
    let place = Place::new();
    let app = place.app(1 << 16);
    let bytes = [1_u8; 1000];
    let label = LabelRequest::write("tidemill:/f", 0, &bytes).impatient();
    let mut tickets = Vec::new();
    let full = loop {
        match app.publish(&label) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!((50..=61).contains(&tickets.len()), "{}", tickets.len());
    assert_eq!(
        tickets[3]
            .wait_for(Duration::from_millis(1))
            .unwrap_err()
            .to_string(),
        "the label is not done yet"
    );
    assert!(tickets[1].cancel() && !tickets[1].cancel());
    place.start_agent();
    // All tickets are held, and the labels fit all the same.
    for _ in 0..1000 {
        tickets.push(
            app.publish(&LabelRequest::write("tidemill:/f", 0, &bytes))
                .unwrap(),
        );
    }
    let outcomes = wait_all(tickets);
    assert_eq!(
        outcomes.iter().filter(|outcome| outcome.is_err()).count(),
        1
    );
    assert!(matches!(outcomes[1], Err(Error::Cancelled)));
}

#[test]
fn label_with_dependency_waits_for_label_of_other_file() {
    let place = Place::new();
    let app = place.app(1 << 20);
    let mut last = app
        .publish(&LabelRequest::append("tidemill:/0", b"0"))
        .unwrap();
    for number in 1..100 {
        let (from, to) = (
            format!("tidemill:/{}", number - 1),
            format!("tidemill:/{number}"),
        );
        if number % 3 == 0 {
            last = app
                .publish(&LabelRequest::rename(&from, &to).after(&last))
                .unwrap();
        } else {
            let label = LabelRequest::append(&to, b"x").after(&last);
            last = app.publish(&label).unwrap();
        }
    }
    place.start_agent();
    last.wait().unwrap();
    assert_eq!(fs::read_dir(place.files()).unwrap().count(), 67);
    let any = [
        app.publish(&LabelRequest::read("tidemill:/1", 0, 1))
            .unwrap(),
        app.publish(&LabelRequest::fence()).unwrap(),
    ];
    assert!(wait_any(&any).unwrap() < 2);
}

#[test]
fn labels_of_ended_application_are_done_and_log_deleted() {
    let place = Place::new();
    let app = place.app(1 << 20);
    for number in 0..500 {
        let text = format!("file {number}");
        drop(
            app.publish(&LabelRequest::write(
                &format!("tidemill:/{number}"),
                0,
                text.as_bytes(),
            ))
            .unwrap(),
        );
    }
    let known = apps::list(Some(&place.logs())).unwrap();
    let is = &known.applications[0];
    assert_eq!(
        (is.name.as_str(), is.runs, is.labels, is.failed),
        ("test", true, 500, 0)
    );
    assert!(known.agent.is_none() && is.used > 500 * 64);
    drop(app);
    assert!(!apps::list(Some(&place.logs())).unwrap().applications[0].runs);
    place.start_agent();
    while !apps::list(Some(&place.logs()))
        .unwrap()
        .applications
        .is_empty()
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    for number in 0..500 {
        assert_eq!(
            place.read(&number.to_string()),
            format!("file {number}").as_bytes()
        );
    }
}

#[test]
fn corrupt_log_is_set_aside_and_others_continue() {
    let place = Place::new();
    let app = place.app(1 << 20);
    drop(
        app.publish(&LabelRequest::write("tidemill:/corrupt", 0, b"x"))
            .unwrap(),
    );
    let log = fs::read_dir(place.logs()).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        path.extension()
            .is_some_and(|end| end == "labels")
            .then_some(path)
    });
    let log = log.unwrap();
    let mut bytes = fs::read(&log).unwrap();
    // The length of the first record.
    bytes[4096 + 8..4096 + 16].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(place.logs().join("0.labels"), &bytes).unwrap();
    fs::write(place.logs().join("1.labels"), b"none").unwrap();
    fs::write(place.logs().join("2.labels"), vec![7; 1 << 18]).unwrap();
    place.start_agent();
    app.flush().unwrap();
    assert_eq!(place.read("corrupt"), b"x");
    while apps::list(Some(&place.logs())).unwrap().corrupt.len() < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn log_directory_readable_by_others_is_refused() {
    let place = Place::new();
    fs::set_permissions(place.logs(), fs::Permissions::from_mode(0o755)).unwrap();
    let settings = RegistrationOptions {
        mount: Some(place.files()),
        directory: Some(place.logs()),
        no_agent: true,
        ..RegistrationOptions::default()
    };
    let error = App::register("test", &settings).unwrap_err().to_string();
    assert!(error.contains("no other user"), "{error}");
    assert!(App::register("two\nlines", &settings).is_err());
}

/// Conditions of labels hold even if the application has dropped tickets of earlier labels, and with any agent that finds the log.
#[test]
fn label_conditions_follow_outcome_of_earlier_labels() {
    let place = Place::new();
    let app = place.app(1 << 16);
    let publish = |label: &LabelRequest<'_>| app.publish(label).unwrap();
    let fine = publish(&LabelRequest::write("tidemill:/a", 0, b"a"));
    let wrong = publish(&LabelRequest::write("tidemill:/none/x", 0, b"x"));
    let cancelled = publish(&LabelRequest::append("tidemill:/c", b"c"));
    assert!(cancelled.cancel());
    let chain = [
        publish(&LabelRequest::append("tidemill:/a", b"1").if_done(&fine)),
        publish(&LabelRequest::append("tidemill:/a", b"2").if_failed(&fine)),
        publish(&LabelRequest::append("tidemill:/a", b"3").if_done(&wrong)),
        publish(&LabelRequest::append("tidemill:/a", b"4").if_failed(&wrong)),
        publish(&LabelRequest::append("tidemill:/a", b"5").if_failed(&cancelled)),
        publish(&LabelRequest::rename("tidemill:/a", "tidemill:/b").if_failed(&cancelled)),
    ];
    let of_chain = publish(&LabelRequest::write("tidemill:/d", 0, b"d").if_failed(&chain[1]));
    place.start_agent();
    // Long enough that the space of the first label is needed, and reused.
    let bytes = vec![7; 150_000];
    let long = publish(&LabelRequest::write("tidemill:/long", 0, &bytes));
    let (then, not) = (
        publish(&LabelRequest::append("tidemill:/long", b"8").if_done(&long)),
        publish(&LabelRequest::delete("tidemill:/long").if_failed(&long)),
    );
    let late = [
        publish(&LabelRequest::append("tidemill:/b", b"6").if_done(&fine)),
        publish(&LabelRequest::append("tidemill:/b", b"7").if_done(&wrong)),
    ];
    let ended = |tickets: Vec<Ticket>| {
        let outcomes = wait_all(tickets).into_iter().map(|outcome| match outcome {
            Ok(_) => true,
            Err(Error::Cancelled) => false,
            Err(error) => panic!("{error}"),
        });
        outcomes.collect::<Vec<_>>()
    };
    assert_eq!(ended(chain.into()), [true, false, false, true, true, true]);
    assert_eq!(ended(vec![of_chain, then, not]), [true, true, false]);
    assert_eq!(ended(late.into()), [true, false]);
    assert_eq!(place.read("b"), b"a1456");
    assert_eq!(place.read("long").len(), 150_001);
    // A label of another application has no order.
    let other = place.app(1 << 16);
    let error = other
        .publish(&LabelRequest::fence().if_done(&fine))
        .unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn callbacks_receive_outcome_of_every_label() {
    let (place, app) = with_agent();
    let (reported, heard) = std::sync::mpsc::channel();
    for number in 0..100_u32 {
        let label = match number % 10 {
            0 => LabelRequest::read("tidemill:/none", 0, 1),
            _ => LabelRequest::append("tidemill:/a", b"x"),
        };
        let reported = reported.clone();
        let callback = move |outcome: Result<Vec<u8>, Error>| {
            reported.send((number, outcome.is_ok())).unwrap();
            assert!(number != 7, "a panic affects no other label");
        };
        app.publish(&label).unwrap().on_done(callback);
        if number == 50 {
            // All callbacks ran, and the thread has ended.
            app.flush().unwrap();
        }
    }
    drop((reported, app));
    let mut heard: Vec<_> = heard.iter().collect();
    heard.sort_unstable();
    let expected = (0..100).map(|number| (number, number % 10 != 0));
    assert_eq!(heard, expected.collect::<Vec<_>>());
    assert_eq!(place.read("a").len(), 90);
}

/// A label that is split into several is not mixed with the labels that other threads publish at the same time.
#[test]
fn split_labels_of_concurrent_threads_are_not_mixed() {
    let (place, app) = with_agent();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let app = app.clone();
            scope.spawn(move || {
                let path = format!("tidemill:/{thread}");
                let bytes = vec![thread; 900_000];
                let written = app.publish(&LabelRequest::write(&path, 0, &bytes)).unwrap();
                let read = app.publish(&LabelRequest::read(&path, 0, 900_000)).unwrap();
                assert_eq!(read.wait().unwrap(), bytes);
                written.wait().unwrap();
            });
        }
    });
    assert_eq!(place.read("3").len(), 900_000);
}

/// A step of the test: a label on one of a few small files.
#[derive(Clone, Debug)]
enum LabelStep {
    Write(u8, u16, Vec<u8>),
    Append(u8, Vec<u8>),
    Cut(u8, Vec<u8>),
    Read(u8, u16, u16),
    Delete(u8),
    Move(u8, u8),
    Copy(u8, u8),
}

fn step() -> impl Strategy<Value = LabelStep> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    let file = || 0..3_u8;
    prop_oneof![
        4 => (file(), 0..300_u16, bytes()).prop_map(|(file, at, bytes)| LabelStep::Write(file, at, bytes)),
        2 => (file(), bytes()).prop_map(|(file, bytes)| LabelStep::Append(file, bytes)),
        1 => (file(), bytes()).prop_map(|(file, bytes)| LabelStep::Cut(file, bytes)),
        3 => (file(), 0..300_u16, 0..300_u16).prop_map(|(file, at, size)| LabelStep::Read(file, at, size)),
        1 => file().prop_map(LabelStep::Delete),
        1 => (file(), file()).prop_map(|(from, to)| LabelStep::Move(from, to)),
        1 => (file(), 1..3_u8).prop_map(|(from, by)| LabelStep::Copy(from, (from + by) % 3)),
    ]
}

/// Applies the step to plain byte strings, in sequence.
fn reference(files: &mut [Option<Vec<u8>>; 3], step: &LabelStep) -> Option<Vec<u8>> {
    let put = |file: &mut Option<Vec<u8>>, at: usize, bytes: &[u8]| {
        let content = file.get_or_insert_default();
        if !bytes.is_empty() {
            content.resize(content.len().max(at + bytes.len()), 0);
            content[at..at + bytes.len()].copy_from_slice(bytes);
        }
    };
    match step {
        LabelStep::Write(file, at, bytes) => {
            put(&mut files[usize::from(*file)], usize::from(*at), bytes)
        }
        LabelStep::Append(file, bytes) => {
            let file = &mut files[usize::from(*file)];
            let end = file.as_ref().map_or(0, Vec::len);
            put(file, end, bytes);
        }
        LabelStep::Cut(file, bytes) => {
            files[usize::from(*file)] = Some(Vec::new());
            put(&mut files[usize::from(*file)], 0, bytes);
        }
        LabelStep::Read(file, at, size) => {
            let content = files[usize::from(*file)].as_ref()?;
            let at = usize::from(*at).min(content.len());
            let end = (at + usize::from(*size)).min(content.len());
            return Some(content[at..end].to_vec());
        }
        LabelStep::Delete(file) => {
            files[usize::from(*file)].take()?;
        }
        LabelStep::Move(from, to) => {
            files[usize::from(*from)].as_ref()?;
            if from != to {
                files[usize::from(*to)] = files[usize::from(*from)].take();
            }
        }
        LabelStep::Copy(from, to) => {
            let content = files[usize::from(*from)].clone()?;
            files[usize::from(*to)] = Some(content);
        }
    }
    Some(Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each label sees the effects of the labels before it, however labels are merged and whichever labels run concurrently.
    #[test]
    fn labels_have_effect_of_sequential_execution(steps in proptest::collection::vec(step(), 1..120), late in any::<bool>(), intent in 0..4_usize) {
        let place = Place::new();
        if !late {
            place.start_agent();
        }
        let intents = [Intent::None, Intent::LowLatency, Intent::Bandwidth, Intent::Energy];
        let app = place.app_for(1 << 18, intents[intent]);
        let name = |file: u8| format!("tidemill:/{file}");
        let tickets: Vec<_> = steps.iter().map(|step| {
            let published = match step {
                LabelStep::Write(file, at, bytes) => app.publish(&LabelRequest::write(&name(*file), u64::from(*at), bytes)),
                LabelStep::Append(file, bytes) => app.publish(&LabelRequest::append(&name(*file), bytes)),
                LabelStep::Cut(file, bytes) => app.publish(&LabelRequest::write(&name(*file), 0, bytes).truncate()),
                LabelStep::Read(file, at, size) => app.publish(&LabelRequest::read(&name(*file), u64::from(*at), u64::from(*size))),
                LabelStep::Delete(file) => app.publish(&LabelRequest::delete(&name(*file))),
                LabelStep::Move(from, to) => app.publish(&LabelRequest::rename(&name(*from), &name(*to))),
                LabelStep::Copy(from, to) => app.publish(&LabelRequest::copy(&name(*from), &name(*to))),
            };
            published.unwrap()
        }).collect();
        if late {
            place.start_agent();
        }
        let mut files = [None, None, None];
        for (outcome, step) in wait_all(tickets).into_iter().zip(&steps) {
            prop_assert_eq!(outcome.ok(), reference(&mut files, step), "{:?}", step);
        }
        for (number, content) in files.iter().enumerate() {
            let path: &Path = &place.files().join(number.to_string());
            prop_assert_eq!(fs::read(path).ok(), content.clone());
        }
    }
}

/// The holder of the key resumes the application: the number of the last label is known, conditions hold, and the outcomes of labels stay
/// until they are requested.
#[test]
fn application_resumes_by_its_key() {
    let place = Place::new();
    let settings = RegistrationOptions {
        mount: Some(place.files()),
        directory: Some(place.logs()),
        capacity: 1 << 16,
        umask: Some(0o077),
        no_agent: true,
        ..RegistrationOptions::default()
    };
    let register = |key: &str| App::register_by_key("test", key, &settings);
    for wrong in ["", "short", "with space", "../../../etc", &"x".repeat(65)] {
        assert!(register(wrong).is_err(), "{wrong}");
    }
    let app = register("key-of-mine").unwrap();
    let wrong = app
        .publish(&LabelRequest::write("tidemill:/none/x", 0, b"x"))
        .unwrap();
    drop(
        app.publish(&LabelRequest::append("tidemill:/a", b"1").if_failed(&wrong))
            .unwrap(),
    );
    drop(
        app.publish(&LabelRequest::append("tidemill:/a", b"2").forgotten())
            .unwrap(),
    );
    assert_eq!(app.last(), 3);
    assert!(register("key-of-mine").is_err(), "another process has it");
    drop((wrong, app));
    let app = register("key-of-mine").unwrap();
    assert_eq!(app.last(), 3);
    let kept: Vec<u64> = app.kept().iter().map(Ticket::number).collect();
    assert_eq!(kept, [1, 2]);
    let [wrong, then] = [1, 2].map(|number| app.ticket(number).unwrap());
    place.start_agent();
    then.wait_for(Duration::from_secs(30)).unwrap();
    assert_eq!(wrong.take().unwrap_err().errno(), 2);
    assert!(then.take().is_ok());
    app.flush().unwrap();
    assert_eq!(place.read("a"), b"12");
    assert_eq!(
        fs::metadata(place.files().join("a"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    // The outcomes are not requested: they fill the buffer, and none is lost.
    let mut tickets = Vec::new();
    while let Ok(ticket) =
        app.publish(&LabelRequest::write("tidemill:/b", 0, &[7; 4000]).impatient())
    {
        tickets.push(ticket);
    }
    let number = app.last();
    assert!(tickets.len() > 10);
    drop((tickets, wrong, then, app));
    let app = register("key-of-mine").unwrap();
    assert_eq!(app.last(), number);
    for ticket in app.kept() {
        ticket.wait().unwrap_or_default();
    }
    app.publish_wait(&LabelRequest::write("tidemill:/b", 0, b"x"))
        .unwrap();
    assert_eq!(app.last(), number + 1);
}

/// Large durable labels have all sizes and offsets, and other labels are between them. Some bytes bypass the page cache and some do not,
/// also at the end of the ring.
#[test]
fn large_durable_labels_write_same_bytes_as_other_labels() {
    let (place, app) = with_agent();
    let mut expected = vec![0_u8; 6 << 20];
    let mut seed = 7_u64;
    let mut number = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for turn in 0..120_u64 {
        let (unit, most) = if turn % 3 == 0 {
            (1, 300_000)
        } else {
            (4096, 64)
        };
        let (size, offset) = (unit * number(most), unit * number((4 << 20) / unit));
        let bytes = vec![u8::try_from(turn).unwrap() + 1; usize::try_from(size).unwrap()];
        let label = LabelRequest::write("tidemill:/large", offset, &bytes);
        let label = if turn % 5 == 0 {
            label
        } else {
            label.durable()
        };
        drop(app.publish(&label).unwrap());
        let from = usize::try_from(offset).unwrap();
        expected[from..from + bytes.len()].copy_from_slice(&bytes);
    }
    app.flush().unwrap();
    let found = place.read("large");
    assert!(found.len() > 4 << 20);
    assert!(found == expected[..found.len()]);
    assert!(expected[found.len()..].iter().all(|byte| *byte == 0));
}
