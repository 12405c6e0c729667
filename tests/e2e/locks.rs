//! Locks of mounts that end badly. Semantics: docs/semantics.md, chapter "Locks".

use crate::array::{Array, Options, OtherMount, wait};
use rustix::process::Signal;
use std::process::{Child, Command};

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
