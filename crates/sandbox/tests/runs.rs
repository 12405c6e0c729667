//! Tests how kernels of all kinds run, and how they end.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "runs/pipeline.rs"]
mod pipeline;
mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use support::{
    LAUNCHER, Place, compile, exists, finish, is_root, output, start, users, wait_until,
};
use tidemill_compute::builtin_hash;
use tidemill_sandbox::{
    CodeSource, OutputError, PrepareError, RunEnd, RunInput, SpawnError, TAIL_BYTES_MAX, User,
    hash_file, locks,
};

#[test]
fn program_reads_inputs_and_writes_outputs() {
    let place = Place::new();
    for user in users() {
        let mut run =
            place.shell("cat a deep/b > out/put; echo $HOME $TMPDIR; echo x > $TMPDIR/t; ls");
        run.user = user;
        let a = place.input(&mut run, "a", "one\n");
        let b = place.input(&mut run, "deep/b", "two\n");
        run.outputs.push("out/put".into());
        let directory = run.directory.clone();
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{}", exit.stderr.text());
        let text = format!("{0} {0}/.tidemill/tmp\na\ndeep\nout\n", directory.display());
        assert_eq!(exit.stdout.text(), text);
        assert_eq!(prepared.output("out/put").unwrap().size().unwrap(), 8);
        assert_eq!(fs::read(directory.join("out/put")).unwrap(), b"one\ntwo\n");
        assert_eq!(exit.usage.written_bytes, 10);
        assert!(exit.usage.rss_bytes_max > 0 && exit.usage.wall > Duration::ZERO);
        fs::remove_file(a).unwrap();
        fs::remove_file(b).unwrap();
    }
}

#[test]
fn probe_measures_processor_share_and_removes_directory() {
    let place = Place::new();
    for user in users() {
        let directory = place
            .run(CodeSource::Builtin("count".into()), &[])
            .directory;
        let share = LAUNCHER.probe(directory.clone(), user).unwrap();
        assert!(share > 0.0 && share <= 1.0, "{share}");
        assert!(!directory.exists());
        // A directory that exists already belongs to somebody else.
        fs::create_dir(&directory).unwrap();
        LAUNCHER.probe(directory.clone(), user).unwrap_err();
        assert!(directory.exists());
    }
}

#[test]
fn code_hash_is_known_before_inputs_exist() {
    let place = Place::new();
    let program = Path::new("/bin/sh");
    for (code, hash) in [
        (CodeSource::Builtin("count".into()), builtin_hash("count")),
        (CodeSource::Program(program.into()), hash_file(program).ok()),
    ] {
        let mut run = place.run(code, &[]);
        run.user = users().last().copied().flatten();
        run.stdin = Some("elsewhere".into());
        assert_eq!(LAUNCHER.code_hash(&run).ok(), hash);
        LAUNCHER.prepare(run).unwrap_err();
    }
}

#[test]
fn kernel_stdin_and_stdout_can_be_files() {
    let place = Place::new();
    for user in users() {
        let mut run = place.run(CodeSource::Program("/usr/bin/tr".into()), &["a-z", "A-Z"]);
        run.user = user;
        let input = place.input(&mut run, "in", "text");
        run.outputs.push("dir/out".into());
        run.stdin = Some("in".into());
        run.stdout = Some("dir/out".into());
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{}", exit.stderr.text());
        let made = prepared.output("dir/out").unwrap();
        assert_eq!(made.size().unwrap(), 4);
        // A process that starts at this time has the file open for a moment.
        wait_until("nobody has it open for writing", || {
            locks::has_writers(made.file()) == Some(false)
        });
        let written = fs::read(prepared.run().directory.join("dir/out")).unwrap();
        assert_eq!(written, b"TEXT");
        assert!(exit.stdout.bytes.is_empty());
        fs::remove_file(input).unwrap();
    }
}

#[test]
fn processor_time_of_waited_grandchildren_counts() {
    let place = Place::new();
    let busy = "seq 9000000 | md5sum";
    // The shell itself reports the usage of its children: the last line of `times`, user and system.
    let run = place.shell(&format!("sh -c 'sh -c \"{busy}\"; true'; times"));
    let (_, exit) = finish(run);
    assert!(exit.success(), "{}", exit.stderr.text());
    let times = exit.stdout.text();
    let children: f64 = times
        .lines()
        .last()
        .unwrap()
        .split_whitespace()
        .map(|time| {
            let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
            minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
        })
        .sum();
    let counted = (exit.usage.user_cpu + exit.usage.system_cpu).as_secs_f64();
    assert!(children > 0.02, "{times}");
    // `times` has ticks of 10 ms.
    assert!(counted + 0.02 >= children, "{counted} s, {times}");
}

#[test]
fn processor_time_of_unwaited_descendants_counts() {
    let place = Place::new();
    // The first process succeeds without having waited for its busy children: one of them ends by itself, one is killed.
    let script = "import os, sys, time
for last in (False, True):
    ready, reported = os.pipe()
    if os.fork() == 0:
        while time.process_time() < 0.2: pass
        os.write(reported, b'x')
        if last: time.sleep(1000)
        os._exit(0)
    os.read(ready, 1)
";
    let (_, exit) = finish(place.python(script));
    assert!(exit.success(), "{}", exit.stderr.text());
    let counted = exit.usage.user_cpu + exit.usage.system_cpu;
    assert!(counted >= Duration::from_millis(390), "{counted:?}");
}

#[test]
fn last_bytes_of_long_standard_error_are_kept() {
    let place = Place::new();
    let (_, exit) = finish(place.shell("yes | head -c 1000000 >&2; echo the end >&2; exit 7"));
    assert_eq!(exit.end, RunEnd::Code(7));
    assert_eq!(exit.stderr.total_bytes, 1_000_008);
    assert_eq!(exit.stderr.bytes.len(), TAIL_BYTES_MAX);
    assert!(exit.stderr.text().ends_with("y\nthe end\n"));
}

#[test]
fn sealed_scripts_and_programs_run() {
    let place = Place::new();
    for user in users() {
        let shell = place.object("object-1", "#!/bin/sh\necho \"$(basename $0)\" \"$@\"\n");
        let python = place.object(
            "object-2",
            "#!/usr/bin/env python3\nimport sys; print(sys.argv[1:])\n",
        );
        let binary = place.object("object-3", fs::read("/bin/echo").unwrap());
        let mut run = place.run(CodeSource::Program(shell.clone()), &["a b", "c"]);
        run.user = user;
        run.inputs.push(RunInput {
            name: "hello.sh".into(),
            path: shell.clone(),
        });
        assert_eq!(output(run), "hello.sh a b c\n");
        for (code, text) in [(&python, "['x']\n"), (&binary, "x\n")] {
            let mut run = place.run(CodeSource::Program(code.clone()), &["x"]);
            run.user = user;
            run.inputs.push(RunInput {
                name: "program".into(),
                path: code.clone(),
            });
            assert_eq!(output(run), text);
        }
        for file in [shell, python, binary] {
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn python_script_runs_in_sandbox() {
    let place = Place::new();
    let script = "import json, math, threading, tempfile, subprocess, os
with tempfile.TemporaryFile() as f: f.write(b'x')
t = threading.Thread(target=lambda: None); t.start(); t.join()
print(subprocess.run(['sh', '-c', 'echo sub'], capture_output=True, text=True).stdout.strip(), math.pi > 3)";
    for user in users() {
        let mut run = place.python(script);
        run.user = user;
        assert_eq!(output(run), "sub True\n");
    }
}

#[test]
fn exit_signal_and_time_limit_are_distinguished() {
    let place = Place::new();
    let crash = "kill -SEGV $$";
    assert_eq!(
        finish(place.shell(crash)).1.end,
        RunEnd::Signal(libc::SIGSEGV)
    );
    assert_eq!(finish(place.shell("exit 3")).1.end, RunEnd::Code(3));
    let mut slow = place.shell("echo begun >&2; while :; do :; done");
    slow.limits.time = Duration::from_millis(400);
    let limits = slow.limits;
    let (_, exit) = finish(slow);
    assert_eq!(exit.end, RunEnd::TimeLimit);
    assert_eq!(exit.stderr.text(), "begun\n");
    assert!(
        exit.message(&limits).contains("time limit of 0.4 s"),
        "{}",
        exit.message(&limits)
    );
    assert!(exit.usage.user_cpu + exit.usage.system_cpu > Duration::ZERO);
}

#[test]
fn running_kernel_can_be_cancelled_and_its_output_read() {
    let place = Place::new();
    let (_, running) = start(place.shell("echo begun; echo trouble >&2; sleep 1000"));
    let control = running.control();
    let canceller = std::thread::spawn(move || {
        while control.stdout().text() != "begun\n" || control.stderr().text() != "trouble\n" {
            std::thread::sleep(Duration::from_millis(5));
        }
        control.cancel();
        control
    });
    assert_eq!(running.wait().unwrap().end, RunEnd::Cancelled);
    canceller.join().unwrap().cancel();
}

#[test]
fn run_over_output_limit_is_killed() {
    let place = Place::new();
    let one = "head -c 30000000 /dev/zero > big";
    let many = "i=0; while :; do i=$((i+1)); head -c 900000 /dev/zero > f$i; done";
    let ignoring = "trap '' XFSZ; head -c 30000000 /dev/zero > big";
    // The first writes to files without a name, the second makes only names.
    let unlinked = "exec python3 -c \"import os, time
for i in range(9):
    f = os.open('f', os.O_CREAT | os.O_WRONLY); os.write(f, bytes(900000)); os.unlink('f')
time.sleep(1000)\"";
    let mapped = "exec python3 -c \"import mmap, os, time
for i in range(9):
    f = os.open('f', os.O_CREAT | os.O_RDWR); os.write(f, bytes(900000)); os.unlink('f')
    globals()[f'm{i}'] = mmap.mmap(f, 900000); os.close(f)
time.sleep(1000)\"";
    let sent = "exec python3 -c \"import array, os, socket, time
a, b = socket.socketpair()
for i in range(40):
    f = os.open('f', os.O_CREAT | os.O_WRONLY); os.write(f, bytes(900000)); os.unlink('f')
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f]))]); os.close(f)
time.sleep(1000)\"";
    let deep = "exec python3 -c \"import os, time
for i in range(200): os.mkdir('d'); os.chdir('d')
time.sleep(1000)\"";
    let names = "exec python3 -c \"import os, time
for i in range(4000): os.mkdir(f'd{i}')
time.sleep(1000)\"";
    let quick = "head -c 900000 /dev/zero > a; head -c 900000 /dev/zero > b";
    for script in [
        one, many, ignoring, quick, unlinked, mapped, sent, deep, names,
    ] {
        for user in users() {
            let mut run = place.shell(script);
            run.user = user;
            run.limits.output_bytes = 1_000_000;
            let (prepared, exit) = finish(run);
            assert_eq!(
                exit.end,
                RunEnd::OutputLimit,
                "{script}: {}",
                exit.stderr.text()
            );
            tidemill_sandbox::remove_directory(&prepared.run().directory).unwrap();
        }
    }
    let mut hole = place.shell("truncate -s 900000 hole; head -c 900000 /dev/zero > full");
    hole.limits.output_bytes = 1_000_000;
    assert_eq!(finish(hole).1.end, RunEnd::Code(0), "holes take no space");
}

#[test]
fn run_over_memory_limit_is_killed() {
    let place = Place::new();
    let at_once = "x = bytearray(1 << 30)";
    let slowly = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    let together = "import os, time
for i in range(8):
    if os.fork() == 0: break
x = bytearray(os.urandom(1) * (40 << 20)); time.sleep(1000)";
    let shared = "import mmap, time
m = mmap.mmap(-1, 1 << 30)
for i in range(0, 1 << 30, 4096): m[i] = 1
time.sleep(1000)";
    for script in [at_once, slowly, together, shared] {
        let mut run = place.python(script);
        run.limits.memory_bytes = 100 << 20;
        run.limits.output_bytes = 2 << 30;
        let (_, exit) = finish(run);
        assert_eq!(
            exit.end,
            RunEnd::MemoryLimit,
            "{script}: {}",
            exit.stderr.text()
        );
    }
}

/// The node cannot see a refused request for memory. A kernel that fails without a message may have failed because of the limit.
#[test]
fn memory_limit_is_named_if_it_may_be_the_cause() {
    let place = Place::new();
    let refused = "import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
at = libc.malloc(ctypes.c_size_t(1 << 32))
";
    let silent = format!("{refused}raise SystemExit(3 if at is None else 0)");
    let crash = format!("{refused}if at is None: ctypes.memset(0, 1, 1)");
    let printed = |script: &str| {
        let mut run = place.python(script);
        run.limits.memory_bytes = 512 << 20;
        let limits = run.limits;
        let (_, exit) = finish(run);
        (exit.end, exit.message(&limits))
    };
    let (end, message) = printed(&silent);
    assert_eq!(end, RunEnd::Code(3));
    assert!(message.contains("limits.memory"), "{message}");
    assert!(message.contains("536870912 bytes"), "{message}");
    let (end, message) = printed(&crash);
    assert_eq!(end, RunEnd::Signal(libc::SIGSEGV));
    assert!(message.contains("limits.memory"), "{message}");
    // A kernel that prints a reason needs no guess.
    let (end, message) = printed("raise SystemExit('no such column')");
    assert_eq!(end, RunEnd::Code(1));
    assert!(!message.contains("limits.memory"), "{message}");
}

#[test]
fn mapped_input_over_memory_limit_is_readable() {
    let place = Place::new();
    let mut run = place.run(CodeSource::Builtin("max".into()), &["dtype=u8"]);
    run.limits.memory_bytes = 32 << 20;
    let mut data = vec![1_u8; 128 << 20];
    data[100 << 20] = 9;
    place.input(&mut run, "big", data);
    assert_eq!(output(run), "9\n");
}

#[test]
fn builtins_read_inputs_and_write_one_output() {
    let place = Place::new();
    for user in users() {
        let mut run = place.run(
            CodeSource::Builtin("mean".into()),
            &["dtype=text", "out=f64"],
        );
        run.user = user;
        let input = place.input(&mut run, "a/numbers", "1 2\n3.5 5.5\n");
        run.outputs.push("b/mean".into());
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{}", exit.stderr.text());
        assert_eq!(prepared.output("b/mean").unwrap().size().unwrap(), 8);
        let bytes = fs::read(prepared.run().directory.join("b/mean")).unwrap();
        assert_eq!(bytes, 3.0_f64.to_le_bytes());
        fs::remove_file(input).unwrap();
    }
    let mut wrong = place.run(CodeSource::Builtin("mean".into()), &["type=f64"]);
    place.input(&mut wrong, "x", "");
    let (_, exit) = finish(wrong);
    assert_eq!(exit.end, RunEnd::Code(2));
    assert!(
        exit.stderr.text().contains("dtype=TYPE, out=text|f64"),
        "{}",
        exit.stderr.text()
    );
}

#[test]
fn analyzethis_listing_1_runs_with_native_kernel() {
    let place = Place::new();
    let library = compile(&place, "../../examples/listing1/getmax.c", "getmax.so");
    let doubles = |values: &[f64]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    for user in users() {
        let mut maxima = Vec::new();
        for values in [&[1.0, 5.0, f64::NAN, 3.0], &[2.0, 9.0, -1.0, 0.0]] {
            let mut run = place.run(CodeSource::Native(library.clone()), &[]);
            run.user = user;
            // The kernel's code is an input of its task, but is not passed to it as an input.
            run.inputs.push(RunInput {
                name: "getmax.so".into(),
                path: library.clone(),
            });
            let input = place.input(&mut run, "1.dat", doubles(values));
            run.outputs.push("1.max".into());
            let (prepared, exit) = finish(run);
            assert!(exit.success(), "{:?} {}", exit.end, exit.stderr.text());
            assert_eq!(prepared.output("1.max").unwrap().size().unwrap(), 8);
            maxima.push(fs::read(prepared.run().directory.join("1.max")).unwrap());
            fs::remove_file(input).unwrap();
        }
        let mut run = place.run(CodeSource::Builtin("mean".into()), &[]);
        run.user = user;
        let files: Vec<_> = ["1.max", "2.max"]
            .iter()
            .zip(&maxima)
            .map(|(name, bytes)| place.input(&mut run, name, bytes))
            .collect();
        assert_eq!(output(run), "7\n");
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
    let mut empty = place.run(CodeSource::Native(library), &[]);
    empty.outputs.push("out".into());
    let (_, exit) = finish(empty);
    assert_eq!(exit.end, RunEnd::Code(1));
    assert_eq!(exit.stderr.text(), "getmax: the inputs hold no numbers\n");
}

#[test]
fn native_kernel_gets_arguments_inputs_and_outputs() {
    let place = Place::new();
    let library = compile(&place, "tests/kernels/probe.c", "probe.so");
    let mut run = place.run(CodeSource::Native(library.clone()), &["one", "two words"]);
    place.input(&mut run, "in/put", "abc");
    place.input(&mut run, "empty", "");
    run.outputs.push("o/1".into());
    run.outputs.push("2".into());
    let (prepared, exit) = finish(run);
    assert_eq!(exit.end, RunEnd::Code(42), "{}", exit.stderr.text());
    let directory = &prepared.run().directory;
    assert_eq!(
        fs::read_to_string(directory.join("o/1")).unwrap(),
        "one|two words|in/put=3 empty=0 "
    );
    assert_eq!(fs::read_to_string(directory.join("2")).unwrap(), "abc");
    assert_eq!(exit.stderr.text(), "constructor: no network\na message\n");
    let crash = place.run(CodeSource::Native(library), &["crash"]);
    assert_eq!(finish(crash).1.end, RunEnd::Signal(libc::SIGSEGV));
    let text = place.object("not-a-library", "hello");
    let (_, exit) = finish(place.run(CodeSource::Native(text), &[]));
    assert_eq!(exit.end, RunEnd::Code(126));
    let printed = exit.stderr.text();
    assert!(
        printed.starts_with("cannot load the kernel") && printed.contains("file too short"),
        "{printed}"
    );
}

#[test]
fn missing_kernel_code_is_reported_with_its_name() {
    let place = Place::new();
    let gone = LAUNCHER
        .prepare(place.run(CodeSource::Program("/usr/bin/no-such".into()), &[]))
        .unwrap_err();
    assert!(
        matches!(gone, PrepareError::Code { .. }) && gone.to_string().contains("/usr/bin/no-such")
    );
    let unknown = LAUNCHER
        .prepare(place.run(CodeSource::Builtin("nean".into()), &[]))
        .unwrap_err();
    assert!(
        unknown
            .to_string()
            .contains("linreg, lz4, max, mean, median, min"),
        "{unknown}"
    );
    let script = place.object("script", "#!/no/interpreter\n");
    let script = LAUNCHER
        .prepare(place.run(CodeSource::Program(script), &[]))
        .unwrap_err();
    assert!(
        matches!(script, PrepareError::Interpreter { .. }),
        "{script}"
    );
    let text = place.object("text", "just text\n");
    let prepared = LAUNCHER
        .prepare(place.run(CodeSource::Program(text), &[]))
        .unwrap();
    let text = LAUNCHER.spawn(&prepared).unwrap_err();
    assert!(
        matches!(text, SpawnError::Execute { .. }) && text.to_string().contains("#!"),
        "{text}"
    );
    assert_eq!(LAUNCHER.find_program("no-such"), None);
    assert!(LAUNCHER.find_program("true").is_some());
}

#[test]
fn invalid_names_of_run_files_are_reported() {
    let place = Place::new();
    let object = place.object("x", "");
    let refused = |inputs: &[&str], outputs: &[&str]| {
        let mut run = place.shell("true");
        run.inputs = inputs
            .iter()
            .map(|name| RunInput {
                name: (*name).into(),
                path: object.clone(),
            })
            .collect();
        run.outputs = outputs.iter().map(|name| (*name).into()).collect();
        let directory = run.directory.clone();
        let error = LAUNCHER.prepare(run).unwrap_err();
        assert!(
            !exists(&directory),
            "nothing is made before all names are checked"
        );
        error
    };
    for name in ["../x", "/x", "a/../../x", "", "a//b", ".tidemill/x"] {
        assert!(
            matches!(refused(&[name], &[]), PrepareError::Name(_)),
            "{name}"
        );
        assert!(
            matches!(refused(&[], &[name]), PrepareError::Name(_)),
            "{name}"
        );
    }
    assert!(matches!(
        refused(&["a"], &["a"]),
        PrepareError::NameTwice(_)
    ));
    assert!(matches!(
        refused(&["a"], &["a/b"]),
        PrepareError::NameTwice(_)
    ));
    let mut run = place.shell("true");
    run.stdin = Some("nothing".into());
    assert!(matches!(
        LAUNCHER.prepare(run).unwrap_err(),
        PrepareError::Stream { .. }
    ));
}

#[test]
fn only_plain_files_become_outputs() {
    let place = Place::new();
    let script = "ln -s /etc/shadow link; mkdir directory; mkdir real; ln -s real linked; echo x > real/file; \
                  if [ -L input ]; then cp input twice; else mv input twice; fi";
    let mut run = place.shell(script);
    let object = place.input(&mut run, "input", "kept");
    let (prepared, exit) = finish(run);
    assert!(exit.success(), "{}", exit.stderr.text());
    for name in ["link", "directory", "linked/file"] {
        assert!(
            matches!(prepared.output(name), Err(OutputError::NotAFile(_))),
            "{name}"
        );
    }
    assert!(matches!(
        prepared.output("nothing"),
        Err(OutputError::Missing(_))
    ));
    assert_eq!(prepared.output("real/file").unwrap().size().unwrap(), 2);
    assert_eq!(prepared.output("twice").unwrap().size().unwrap(), 4);
    let inode = |path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    assert_ne!(inode(prepared.run().directory.join("twice")), inode(object));
}

#[test]
fn user_switch_requires_root() {
    if is_root() {
        // Switching users works in this case, which `users` has tried in the other tests.
        assert!(LAUNCHER.support().switches_user);
        return;
    }
    let place = Place::new();
    let mut run = place.shell("true");
    run.user = Some(User { uid: 1, gid: 1 });
    assert!(LAUNCHER.prepare(run).is_err());
}
