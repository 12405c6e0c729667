//! Tests events of new files: `subscribe`, labels that wait for files, `tidemill events`. Semantics: docs/labels.md.

use crate::apps::{Labels, USER, line};
use crate::cluster::{Cluster, Options, OtherMount, wait};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

const SUBSCRIBES: &str = "
files = app.subscribe('tidemill:/**')
print(files.cursor, flush=True)
for path in files:
    print(path, flush=True)
    if path.endswith('/end'): break
";

const FOLLOWS: &str = "
import threading
later = App('later')
step = later.file_event('tidemill:/w/step-*')
lines = later.analyse('wc', ['-l', 'step-1'], inputs=['tidemill:/w/step-1'], outputs=['tidemill:/w/lines'], stdout='tidemill:/w/lines', result=9, flags=IF_DONE, after=step)
called, rung = [], threading.Event()
app.file_event('tidemill:/w/**/end').on_done(lambda path: (called.append(path), rung.set()))
back = app.file_event('tidemill:/w/never')
print('ready', flush=True)
# Other labels of the same application continue.
mine = app.file_event('tidemill:/w/own-?')
app.write('tidemill:/w/own-1', 0, b'x').wait()
assert mine.wait() == b'tidemill:/w/own-1'
app.flush()
assert not step.test() and not lines.test() and not called
print('waits', flush=True)
assert step.wait() == b'tidemill:/w/step-1'
assert lines.wait() == b'2 step-1\\n'
rung.wait()
assert called == [b'tidemill:/w/below/end'], called
follows = app.write('tidemill:/w/follows', 0, b'x', flags=IF_DONE, after=back)
assert back.cancel()
for label in back, follows:
    try: label.wait(); print('done')
    except OSError as error: print(error)
for pattern, since in ('tidemill:/w/[', None), ('tidemill:/../x', None), ('tidemill:/w/*', 'x'), ('tidemill:/w/*', '9' * 18), ('tidemill:/w/*', '1'):
    try: app.file_event(pattern, since).wait(); print('done')
    except OSError as error: print(error)
left = app.file_event('tidemill:/w/never')
print('left', flush=True)
";

fn again(cluster: &Cluster, directory: &Path) -> Labels {
    Labels::again(cluster, USER, directory.to_owned())
}

/// A thousand files appear in one moment, next to files that the user may not read, while agent and server are killed.
/// Each file is reported once, in the order of the cluster, and once more from a cursor.
#[test]
fn events_report_each_file_once_in_order_despite_kills() {
    let Some(mut cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir run && chmod 755 run && mkdir closed && chmod 700 closed");
    let directory = cluster.path(&format!("labels-{USER}"));
    let (mut program, mut out, begin) = {
        let labels = Labels::of(&cluster, USER);
        let mut program = labels.python(SUBSCRIBES);
        let mut out = program.stdout.take().unwrap();
        let begin = line(&mut out);
        (program, out, begin)
    };
    let make = "for i in $(seq 500); do echo $i > run/step-$i; echo > closed/$i; done; (umask 077; echo > run/private)";
    std::thread::scope(|scope| {
        let made = scope.spawn(|| cluster.sh(make));
        while !made.is_finished() {
            // Dropping this value ends the agent; a waiting program starts another.
            drop(again(&cluster, &directory));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    });
    cluster.kill_server();
    drop(again(&cluster, &directory));
    cluster.start_server();
    cluster.sh("mkdir new; for i in $(seq 500); do echo $i > new/step-$i; done; mv new run/late; echo > run/end");
    let mut reported = String::new();
    out.read_to_string(&mut reported).unwrap();
    assert!(program.wait().unwrap().success());
    let reported: Vec<&str> = reported.lines().collect();
    let mut sorted: Vec<&str> = reported
        .iter()
        .map(|path| path.strip_prefix("tidemill:/run/").unwrap_or(path))
        .collect();
    sorted.sort_unstable();
    // Before the rename, the directory was reported as well, if a process received the event in time.
    sorted.retain(|path| !path.starts_with("tidemill:/new/step-"));
    let mut expected: Vec<String> = (1..=500)
        .flat_map(|i| [format!("step-{i}"), format!("late/step-{i}")])
        .collect();
    expected.push("end".into());
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    // From the start, with the command line as root: all present files, in the same order.
    let user = |path: &&str| !path.starts_with("/closed/") && *path != "/run/private";
    let known = cluster.run(&["events", "/**", "--since", &begin, "--count", "1502"]);
    let known: Vec<&str> = known.out.lines().filter(user).collect();
    let own: Vec<&str> = reported
        .iter()
        .filter(|path| !path.starts_with("tidemill:/new/"))
        .map(|path| path.strip_prefix("tidemill:").unwrap())
        .collect();
    assert_eq!(own, known);
    // A reader that was offline has missed no file; a reader that was offline for too long gets an error.
    let later = again(&cluster, &directory).printed_by(&format!(
        "
files = app.subscribe('tidemill:/run/step-*', '{begin}')
print(len([files.next() for n in range(500)]))
try: files.next(.2)
except TimeoutError: print('no more')
files = app.subscribe('tidemill:/run/end', '1')
try: files.next()
except OSError as error: print(error)
print(files.next())
"
    ));
    let later: Vec<&str> = later.lines().collect();
    assert_eq!(
        (later[0], later[1], later[3]),
        ("500", "no more", "tidemill:/run/end")
    );
    assert!(later[2].contains("were discarded"), "{}", later[2]);
}

/// A label runs after a file of another user has arrived. A cancelled label does not run.
#[test]
fn application_label_follows_event_of_files_of_other_users() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster
        .sh("mkdir w own && chmod 777 w && chmod 700 own && echo old > w/step-0 && mkdir w/below");
    let other = OtherMount::start(&cluster, "m1");
    let labels = Labels::of(&cluster, USER);
    let mut program = labels.python(FOLLOWS);
    let mut out = program.stdout.take().unwrap();
    assert_eq!(line(&mut out), "ready");
    assert_eq!(line(&mut out), "waits");
    let there = other.path.join("w");
    // The file does not have a matching name before it is complete, and is not in a directory that the user may not enter.
    cluster.sh(&format!(
        "cd {}; echo > ../own/step-9; printf '1\\n2\\n' > part; mv part step-1; echo > below/end",
        there.display()
    ));
    let mut printed = String::new();
    out.read_to_string(&mut printed).unwrap();
    assert!(program.wait().unwrap().success(), "{printed}");
    let printed: Vec<&str> = printed.lines().collect();
    assert!(
        printed[..2].iter().all(|line| line.contains("cancelled")),
        "{printed:?}"
    );
    for (line, why) in printed[2..].iter().zip([
        "never closed",
        "without ..",
        "cursor",
        "is in the future",
        "were discarded",
        "left",
    ]) {
        assert!(line.contains(why), "{why}: {line}");
    }
    // Labels that wait for files are cancelled when their application has ended.
    labels.wait_until_done();
    assert!(!cluster.at("w/follows").exists());
    // The same with the command line.
    let mut watch = cluster.tidemill();
    let watch = watch.args(["--json", "events", "/w/late", "--count", "1"]);
    let watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    wait("it watches", || {
        cluster.sh("rm -f w/late; echo > w/late");
        std::thread::sleep(std::time::Duration::from_millis(100));
        std::fs::read_to_string(format!("/proc/{}/stat", watch.id()))
            .is_ok_and(|stat| stat.contains(") Z "))
    });
    let printed = watch.wait_with_output().unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(
        (&printed["path"], &printed["uid"]),
        (&"/w/late".into(), &0.into())
    );
}
