//! Locks of mounts that end badly. Semantics: docs/semantics.md, chapter "Locks".

use crate::array::{Array, Options, OtherMount, wait};
use rustix::process::Signal;
use std::process::{Child, Command};
use std::time::Duration;

fn shell(script: &str) -> Child {
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).spawn().unwrap()
}

/// Who waits gets the lock, and finds what the holder had written; what that writes afterwards, in place and without its
/// mount, is in no version.
#[test]
fn locks_of_a_mount_that_is_killed_or_stopped_are_free_when_it_can_write_no_more() {
    let Some(array) = Array::with(Options::default()) else {
        return;
    };
    let (killed, stopped) = (
        OtherMount::start(&array, "m1"),
        OtherMount::start(&array, "m2"),
    );
    let mut holders = Vec::new();
    for other in [&killed, &stopped] {
        let at = other.path.display();
        let name = other.path.file_name().unwrap().to_str().unwrap().to_owned();
        let script = format!(
            "exec 9>{at}/lock-{name} 8>{at}/data-{name}; flock 9; echo before >&8; : >{at}/held-{name}; \
             while sleep 0.05; do echo after >&8; done"
        );
        holders.push(shell(&script));
        wait("the lock is held", || {
            array.at(&format!("held-{name}")).exists()
        });
    }
    killed.signal(Signal::KILL);
    stopped.signal(Signal::STOP);
    for name in ["m1", "m2"] {
        let seen = array.sh(&format!(
            "flock lock-{name} sh -c 'cat data-{name} >seen; sleep 0.5; cmp data-{name} seen && head -n 1 seen'"
        ));
        assert_eq!(seen.trim(), "before", "{name}");
    }
    stopped.signal(Signal::CONT);
    // It can't have what others may have had meanwhile, and says so; who asks there now gets it in turn.
    let at = stopped.path.display();
    array.sh(&format!("flock {at}/lock-m2 true"));
    for holder in &mut holders {
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
}

/// Who has a file open waits for what is away as any operation does, also when it writes and the version before is still
/// being sealed on an element that hangs: not only as long as who opens a file would.
#[test]
fn a_database_of_two_mounts_outlives_elements_that_hang() {
    let Some(array) = Array::with(Options::default()) else {
        return;
    };
    let other = OtherMount::start(&array, "m1");
    let count = r"
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1] + '/db', timeout=60, isolation_level=None)
db.execute('CREATE TABLE IF NOT EXISTS t(n INTEGER)')
end, counted = time.time() + float(sys.argv[2]), 0
while time.time() < end:
    db.execute('INSERT INTO t VALUES (0)')
    counted += 1
print(counted)
";
    let at = [
        array.at(""),
        array.at(""),
        other.path.clone(),
        other.path.clone(),
    ];
    let make = Command::new("python3")
        .args(["-c", count])
        .arg(&at[0])
        .arg("0")
        .status();
    assert!(make.unwrap().success());
    let programs = at.map(|at| {
        let mut program = Command::new("python3");
        program.args(["-c", count]).arg(at).arg("10");
        program
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    });
    std::thread::sleep(Duration::from_secs(1));
    let elements = 0..Options::default().elements;
    elements
        .clone()
        .for_each(|element| array.signal_element(element, Signal::STOP));
    std::thread::sleep(Duration::from_secs(8));
    elements.for_each(|element| array.signal_element(element, Signal::CONT));
    let counted = programs.map(|program| {
        let ended = program.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout)
            .unwrap()
            .trim()
            .parse::<usize>()
            .unwrap()
    });
    let rows = array.sh("sqlite3 db 'SELECT count(*) FROM t'");
    assert_eq!(rows.trim(), counted.iter().sum::<usize>().to_string());
}
