//! Labels in a folder of this host: the agent needs no array for what it does.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidemill_label::{App, Error, Label, Settings, agent, apps, wait_all, wait_any};

/// A folder for files, one for logs, and whether there is an agent.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("files")).unwrap();
        fs::DirBuilder::new()
            .mode(0o700)
            .create(folder.path().join("logs"))
            .unwrap();
        Self { folder }
    }

    fn logs(&self) -> PathBuf {
        self.folder.path().join("logs")
    }

    fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    fn start_agent(&self) {
        let logs = self.logs();
        std::thread::spawn(move || agent::run(Some(&logs), |_| ()));
    }

    fn app(&self, capacity: u64) -> App {
        let settings = Settings {
            mount: Some(self.files()),
            folder: Some(self.logs()),
            capacity,
            no_agent: true,
        };
        App::register("test", &settings).unwrap()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.files().join(name)).unwrap()
    }
}

fn with_agent() -> (Place, App) {
    let place = Place::new();
    place.start_agent();
    let app = place.app(1 << 20);
    (place, app)
}

#[test]
fn what_was_published_is_written_read_renamed_and_removed_in_order() {
    let (place, app) = with_agent();
    let write =
        |path, offset, bytes: &[u8]| app.publish(&Label::write(path, offset, bytes)).unwrap();
    let first = write("tidemill:/a", 0, b"hello");
    drop(write("tidemill:/a", 5, b" world"));
    let read = app.publish(&Label::read("tidemill:/a", 3, 100)).unwrap();
    let end = app.publish(&Label::append("tidemill:/a", b"!")).unwrap();
    assert_eq!(read.wait().unwrap(), b"lo world");
    first.wait().unwrap();
    end.wait().unwrap();
    assert_eq!(place.read("a"), b"hello world!");
    drop(
        app.publish(&Label::rename("tidemill:/a", "tidemill:/b"))
            .unwrap(),
    );
    let path = place.files().join("b");
    let cut = Label::write(path.to_str().unwrap(), 0, b"new")
        .truncate()
        .durable();
    app.publish_wait(&cut).unwrap();
    assert_eq!(place.read("b"), b"new");
    app.publish_wait(&Label::delete("tidemill:/b")).unwrap();
    assert!(fs::read_dir(place.files()).unwrap().next().is_none());
}

#[test]
fn what_fails_says_why_and_nothing_else_fails() {
    let (place, app) = with_agent();
    fs::create_dir(place.files().join("folder")).unwrap();
    let labels = [
        Label::write("tidemill:/none/x", 0, b"x"),
        Label::write("tidemill:/folder", 0, b"x"),
        Label::read("tidemill:/none", 0, 1),
        Label::delete("tidemill:/none"),
        Label::rename("tidemill:/none", "tidemill:/other"),
        Label::write("tidemill:/fine", 0, b"fine"),
    ];
    let tickets = labels
        .iter()
        .map(|label| app.publish(label).unwrap())
        .collect();
    let said: Vec<_> = wait_all(tickets)
        .into_iter()
        .map(|outcome| outcome.map_err(|error| error.to_string()))
        .collect();
    let root = "tidemill:/";
    let none = "No such file or directory (os error 2)";
    let expected = [
        format!("can't write {root}none/x: {none}"),
        format!("can't write {root}folder: Is a directory (os error 21)"),
        format!("can't read {root}none: {none}"),
        format!("can't remove {root}none: {none}"),
        format!("can't rename {root}none: {none}"),
    ];
    for (said, expected) in said.iter().zip(&expected) {
        assert_eq!(said.as_ref().unwrap_err(), expected);
    }
    assert!(said[5].is_ok());
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
        let error = app.publish(&Label::write(address, 0, b"x")).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{address}: {error}");
    }
    let beyond = Label::write("tidemill:/x", u64::MAX - 1, b"xxxx");
    assert!(matches!(app.publish(&beyond), Err(Error::Invalid(_))));
}

#[test]
fn labels_larger_than_the_room_are_split_and_wait_for_it() {
    let (place, app) = with_agent();
    let bytes: Vec<u8> = (0..10_000_000_u32)
        .map(|n| n.wrapping_mul(7).to_le_bytes()[1])
        .collect();
    app.publish_wait(&Label::write("tidemill:/big", 3, &bytes))
        .unwrap();
    assert_eq!(place.read("big")[3..], bytes);
    let read = app
        .publish(&Label::read("tidemill:/big", 0, 300_000))
        .unwrap();
    assert_eq!(read.wait().unwrap()[3..], bytes[..299_997]);
}

#[test]
fn an_impatient_label_is_refused_where_there_is_no_room_and_tickets_take_none() {
    let place = Place::new();
    let app = place.app(1 << 16);
    let bytes = [1_u8; 1000];
    let label = Label::write("tidemill:/f", 0, &bytes).impatient();
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
    // All tickets are held, and yet there is room.
    for _ in 0..1000 {
        tickets.push(
            app.publish(&Label::write("tidemill:/f", 0, &bytes))
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
fn labels_wait_for_labels_of_other_files() {
    let place = Place::new();
    let app = place.app(1 << 20);
    let mut last = app.publish(&Label::append("tidemill:/0", b"0")).unwrap();
    for number in 1..100 {
        let (from, to) = (
            format!("tidemill:/{}", number - 1),
            format!("tidemill:/{number}"),
        );
        if number % 3 == 0 {
            last = app
                .publish(&Label::rename(&from, &to).after(&last))
                .unwrap();
        } else {
            let label = Label::append(&to, b"x").after(&last);
            last = app.publish(&label).unwrap();
        }
    }
    place.start_agent();
    last.wait().unwrap();
    assert_eq!(fs::read_dir(place.files()).unwrap().count(), 67);
    let any = [
        app.publish(&Label::read("tidemill:/1", 0, 1)).unwrap(),
        app.publish(&Label::fence()).unwrap(),
    ];
    assert!(wait_any(&any).unwrap() < 2);
}

#[test]
fn what_an_application_published_is_done_when_it_has_ended_and_its_log_goes() {
    let place = Place::new();
    let app = place.app(1 << 20);
    for number in 0..500 {
        let text = format!("file {number}");
        drop(
            app.publish(&Label::write(
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
fn logs_that_are_damaged_are_set_aside_and_others_go_on() {
    let place = Place::new();
    let app = place.app(1 << 20);
    drop(
        app.publish(&Label::write("tidemill:/damaged", 0, b"x"))
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
    assert_eq!(place.read("damaged"), b"x");
    while apps::list(Some(&place.logs())).unwrap().damaged.len() < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_folder_that_others_may_look_into_is_refused() {
    let place = Place::new();
    fs::set_permissions(place.logs(), fs::Permissions::from_mode(0o755)).unwrap();
    let settings = Settings {
        mount: Some(place.files()),
        folder: Some(place.logs()),
        no_agent: true,
        ..Settings::default()
    };
    let error = App::register("test", &settings).unwrap_err().to_string();
    assert!(error.contains("nobody else"), "{error}");
    assert!(App::register("two\nlines", &settings).is_err());
}

/// What a label does to one of a few small files.
#[derive(Clone, Debug)]
enum Step {
    Write(u8, u16, Vec<u8>),
    Append(u8, Vec<u8>),
    Cut(u8, Vec<u8>),
    Read(u8, u16, u16),
    Delete(u8),
    Move(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
    let file = || 0..3_u8;
    prop_oneof![
        4 => (file(), 0..300_u16, bytes()).prop_map(|(file, at, bytes)| Step::Write(file, at, bytes)),
        2 => (file(), bytes()).prop_map(|(file, bytes)| Step::Append(file, bytes)),
        1 => (file(), bytes()).prop_map(|(file, bytes)| Step::Cut(file, bytes)),
        3 => (file(), 0..300_u16, 0..300_u16).prop_map(|(file, at, size)| Step::Read(file, at, size)),
        1 => file().prop_map(Step::Delete),
        1 => (file(), file()).prop_map(|(from, to)| Step::Move(from, to)),
    ]
}

/// The same, one after the other.
fn reference(files: &mut [Option<Vec<u8>>; 3], step: &Step) -> Option<Vec<u8>> {
    let put = |file: &mut Option<Vec<u8>>, at: usize, bytes: &[u8]| {
        let content = file.get_or_insert_default();
        if !bytes.is_empty() {
            content.resize(content.len().max(at + bytes.len()), 0);
            content[at..at + bytes.len()].copy_from_slice(bytes);
        }
    };
    match step {
        Step::Write(file, at, bytes) => {
            put(&mut files[usize::from(*file)], usize::from(*at), bytes)
        }
        Step::Append(file, bytes) => {
            let file = &mut files[usize::from(*file)];
            let end = file.as_ref().map_or(0, Vec::len);
            put(file, end, bytes);
        }
        Step::Cut(file, bytes) => {
            files[usize::from(*file)] = Some(Vec::new());
            put(&mut files[usize::from(*file)], 0, bytes);
        }
        Step::Read(file, at, size) => {
            let content = files[usize::from(*file)].as_ref()?;
            let at = usize::from(*at).min(content.len());
            let end = (at + usize::from(*size)).min(content.len());
            return Some(content[at..end].to_vec());
        }
        Step::Delete(file) => {
            files[usize::from(*file)].take()?;
        }
        Step::Move(from, to) => {
            files[usize::from(*from)].as_ref()?;
            if from != to {
                files[usize::from(*to)] = files[usize::from(*from)].take();
            }
        }
    }
    Some(Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is gathered, and whatever is done at the same time: each label finds what those before it left.
    #[test]
    fn labels_do_what_they_would_one_after_the_other(steps in proptest::collection::vec(step(), 1..120), late in any::<bool>()) {
        let place = Place::new();
        if !late {
            place.start_agent();
        }
        let app = place.app(1 << 18);
        let name = |file: u8| format!("tidemill:/{file}");
        let tickets: Vec<_> = steps.iter().map(|step| {
            let published = match step {
                Step::Write(file, at, bytes) => app.publish(&Label::write(&name(*file), u64::from(*at), bytes)),
                Step::Append(file, bytes) => app.publish(&Label::append(&name(*file), bytes)),
                Step::Cut(file, bytes) => app.publish(&Label::write(&name(*file), 0, bytes).truncate()),
                Step::Read(file, at, size) => app.publish(&Label::read(&name(*file), u64::from(*at), u64::from(*size))),
                Step::Delete(file) => app.publish(&Label::delete(&name(*file))),
                Step::Move(from, to) => app.publish(&Label::rename(&name(*from), &name(*to))),
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
