//! Tests mappers that are users' programs: task instances read the chunks of a file that the mapper reports, and if a mapper fails in any
//! way, the job reports the reason.

use crate::chance::Chance;
use crate::cluster::{Cluster, Options, wait};
use rustix::process::Signal;
use std::process::Command;

fn cluster() -> Option<Cluster> {
    Cluster::with(Options {
        nodes: 3,
        remote: true,
        ..Options::default()
    })
}

fn job(task: &str) -> String {
    format!(r#"name = "j"; workdir = "/"; tasks = ( {{ {task} }} );"#)
}

/// Mapper for a file whose first line contains `BEGIN:END` of each chunk: it prints a map with some settings.
const MAPPER: &str = r#"#!/bin/sh
for file; do :; done
read -r line < "$file"
printf '{ "version": 1, %s "chunks": [' "$1"
sep=
for piece in $line; do
  printf '%s{ "bytes": [[%s, %s]] }' "$sep" "${piece%:*}" "${piece#*:}"
  sep=,
done
echo ']}'
"#;

/// Stores a shell script in the cluster.
fn script(cluster: &Cluster, name: &str, text: &str) {
    std::fs::write(cluster.at(name), text).unwrap();
    cluster.sh(&format!("chmod +x {name}"));
}

/// Makes a striped file of chunks, and returns their contents: 1000 numbers each, big-endian and compressed.
fn with_pieces(cluster: &Cluster) -> Vec<i32> {
    let mut chance = Chance(11);
    let (mut numbers, mut body, mut line) = (Vec::new(), Vec::new(), String::new());
    for piece in 0..12 {
        let own: Vec<i32> = (0..1000)
            .map(|_| i32::try_from(chance.next(1 << 20)).unwrap())
            .collect();
        let bytes: Vec<u8> = own.iter().flat_map(|one| one.to_be_bytes()).collect();
        let plain = cluster.path("plain");
        std::fs::write(&plain, bytes).unwrap();
        let packed = Command::new("gzip")
            .arg("-nc")
            .arg(&plain)
            .output()
            .unwrap();
        body.extend(vec![0xee; 700 + 100 * piece]);
        let begin = 4096 + body.len();
        body.extend(&packed.stdout);
        line.push_str(&format!("{begin}:{} ", 4096 + body.len()));
        numbers.extend(own);
    }
    line.push('\n');
    let mut all = line.into_bytes();
    all.resize(4096, b'\n');
    all.extend(body);
    let local = cluster.path("pieces");
    std::fs::write(&local, all).unwrap();
    let printed = cluster.run(&[
        "put",
        "--stripe",
        "4096,3",
        local.to_str().unwrap(),
        "/pieces",
    ]);
    assert!(printed.ok, "{}", printed.err);
    numbers
}

#[test]
fn program_mapper_defines_input_of_instances() {
    let Some(cluster) = cluster() else { return };
    let numbers = with_pieces(&cluster);
    script(&cluster, "map", MAPPER);
    let values = r#""variable": "x", "dtype": "int32", "order": "big", "chunk_shape": [1000], "codecs": ["gzip"],"#;
    let mapper = |settings: &str| {
        let words = format!("program:map '{settings}'");
        words.replace('\\', "\\\\").replace('"', "\\\"")
    };
    let task = |per: &str, settings: &str| {
        let word = per.replace("stripe-object", "part");
        job(&format!(
            r#"name = "t"; kernel = "cat"; type = "program"; args = [ "pieces" ]; per = "{per}"; variable = "{}";
               input = [ "pieces" ]; output = [ "{word}/{{{word}}}" ]; stdout = "{word}/{{{word}}}";"#,
            mapper(settings)
        ))
    };
    let expected: Vec<u8> = numbers.iter().flat_map(|one| one.to_ne_bytes()).collect();
    let reported = cluster.done(cluster.submit(&task("chunk", values)));
    assert_eq!(
        reported["tasks"].as_array().unwrap().len(),
        12,
        "{reported:#}"
    );
    cluster.sh("cat chunk/* > all");
    assert_eq!(std::fs::read(cluster.at("all")).unwrap(), expected);
    // Each task instance runs where most of its bytes are: not even chunks across stripes are transferred completely.
    let layout = cluster.json(&["stat", "/pieces"]);
    let size = layout["size"].as_u64().unwrap();
    let tasks = reported["tasks"].as_array().unwrap();
    let transferred = tasks
        .iter()
        .map(|task| task["transferred_bytes"].as_u64().unwrap());
    assert!(transferred.sum::<u64>() < size * 3 / 4, "{reported:#}");
    // There is one task instance for each part; a fold makes one result of them.
    let sum = job(&format!(
        r#"name = "sum"; kernel = "sum"; args = [ "dtype=i32" ]; per = "stripe-object"; variable = "{}"; input = [ "pieces" ]; output = [ "sum" ];"#,
        mapper(values)
    ));
    cluster.done(cluster.submit(&sum));
    let sum: i64 = cluster.sh("cat sum").trim().parse().unwrap();
    assert_eq!(sum, numbers.iter().map(|one| i64::from(*one)).sum::<i64>());
    // Without a type, chunks are plain bytes.
    cluster.done(cluster.submit(&task("stripe-object", "")));
    let held = cluster.sh("head -n 1 pieces");
    let lengths = held.split_whitespace().map(|piece| {
        let (begin, end) = piece.split_once(':').unwrap();
        end.parse::<u64>().unwrap() - begin.parse::<u64>().unwrap()
    });
    let read: u64 = cluster.sh("cat part/* | wc -c").trim().parse().unwrap();
    assert_eq!(read, lengths.sum::<u64>());
    // The mapper gets the layout of the file, and sees that file and nothing else; a dry run runs it, too.
    script(
        &cluster,
        "show",
        "#!/bin/sh\nls >&2; wc -c pieces >&2; echo \"$TIDEMILL_LAYOUT\" >&2; exit 7\n",
    );
    let shows = task("chunk", values).replace("program:map", "program:show");
    let path = cluster.path("dry.conf");
    std::fs::write(&path, &shows).unwrap();
    let dry = cluster.run(&["submit", "--dry-run", path.to_str().unwrap()]);
    for printed in [cluster.try_submit(&shows), dry] {
        assert!(!printed.ok);
        let head = format!("pieces\\nshow\\n{size} pieces\\n");
        assert!(
            printed.err.contains("task \"t\"")
                && printed.err.contains("exit code 7")
                && printed.err.contains(&head)
                && printed
                    .err
                    .contains(&format!(r#"\"size\":{size},\"unit\":4096,\"width\":3"#)),
            "{}",
            printed.err
        );
    }
    // The printed maps have no name, and are deleted.
    wait("nothing is left of maps", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
    assert!(!cluster.sh("ls -A").contains("tidemill-map"));
}

/// Maps without their version that the server refuses, and the reasons.
const REFUSED_MAPS: [(&str, &str); 8] = [
    (
        r#""chunks":[{"bytes":[[0,8]]},{"bytes":[[4,12]]}]"#,
        "chunks 0 and 1 both have byte 4",
    ),
    (
        r#""chunks":[{"bytes":[[8,8]]}]"#,
        "chunk 0: [8, 8] is not a range of bytes",
    ),
    (
        r#""chunks":[{"bytes":[[8,9],[0,1]]}]"#,
        "chunk 0: the range from 0 on begins before the end of the previous range",
    ),
    (
        r#""dtype":"int32","chunks":[{"bytes":[[0,7]]}]"#,
        "chunk 0: 7 bytes are not 1 values of 4 bytes",
    ),
    (r#""dtype":"int99","chunks":[{"bytes":[[0,8]]}]"#, "int99"),
    (
        r#""dtype":"int32","shape":[4,4],"chunks":[{"bytes":[[0,32]],"start":[3,0],"shape":[2,4]}]"#,
        "are not within the variable's shape [4, 4]",
    ),
    (
        r#""dtype":"int32","chunk_shape":[9],"codecs":["rot13"],"chunks":[{"bytes":[[0,8]]}]"#,
        "rot13",
    ),
    (r#""chunks":[{"byte":[0,8]}]"#, "unknown field `byte`"),
];

/// Programs that print no map, and the reasons.
const FAILING_PROGRAMS: [(&str, &str); 5] = [
    (
        "echo hello",
        r#"its output is not a map: expected value at line 1 column 1; it begins with "hello"#,
    ),
    (":", "it begins with nothing"),
    ("echo why >&2; cat /dev/zero", r#"it printed "why"#),
    ("echo slow; sleep 100", "time limit"),
    ("kill -SEGV $$", "signal"),
];

#[test]
fn failing_program_mapper_is_reported() {
    let Some(mut cluster) = cluster() else { return };
    with_pieces(&cluster);
    let task = |mapper: &str| {
        job(&format!(
            r#"name = "t"; kernel = "wc"; type = "program"; args = [ "pieces" ]; per = "chunk"; variable = "{mapper}";
               input = [ "pieces" ]; output = [ "n.{{chunk}}" ]; stdout = "n.{{chunk}}"; limits = {{ time = 4; }};"#
        ))
    };
    let size = std::fs::metadata(cluster.at("pieces")).unwrap().len();
    let beyond = format!(r#""chunks":[{{"bytes":[[0,{}]]}}]"#, size + 1);
    let end = format!(
        "chunk 0: bytes 0 to {} are beyond the file's end, {size}",
        size + 1
    );
    let maps = std::iter::once((beyond.as_str(), end.as_str())).chain(REFUSED_MAPS);
    let maps = maps.map(|(map, why)| (format!("echo '{{\"version\":1,{map}}}'"), why));
    let programs = FAILING_PROGRAMS.map(|(program, why)| (program.to_owned(), why));
    for (number, (text, expected)) in maps.chain(programs).enumerate() {
        script(
            &cluster,
            &format!("m{number}"),
            &format!("#!/bin/sh\n{text}\n"),
        );
        let printed = cluster.try_submit(&task(&format!("program:m{number}")));
        assert!(!printed.ok, "{text}");
        assert!(
            printed.err.contains(expected)
                && printed.err.contains("task \"t\"")
                && printed.err.contains(&format!("m{number}")),
            "{text}: {}",
            printed.err
        );
    }
    let reported = |mapper: &str| cluster.try_submit(&task(mapper)).err;
    assert!(reported("program:no-such").contains("\"no-such\" was not found"));
    assert!(reported("program:m0 | m1").contains("it is one program"));
    let rule = cluster.path("r.rule");
    let text = r#"name = "r"; workdir = "/"; pattern = "in/*"; task = { kernel = "wc"; per = "chunk"; variable = "program:m0"; output = [ "n.{chunk}" ]; };"#;
    std::fs::write(&rule, text).unwrap();
    let printed = cluster.run(&["rule", "create", rule.to_str().unwrap()]);
    assert!(
        !printed.ok && printed.err.contains("runs no program for a map"),
        "{}",
        printed.err
    );
    the_server_is_killed_meanwhile(&mut cluster, &task("program:naps"));
}

/// The server is killed during the mapper's job: no part of the job is kept, and its mapper's job ends.
fn the_server_is_killed_meanwhile(cluster: &mut Cluster, job: &str) {
    script(cluster, "naps", "#!/bin/sh\nsleep 1\necho nothing\n");
    let jobs = |cluster: &Cluster, state: &str| {
        let all = cluster.json(&["job", "list"]);
        let all = all.as_array().unwrap().iter();
        all.filter(|job| job["state"] == state).count()
    };
    let before = cluster.json(&["job", "list"]).as_array().unwrap().len();
    std::fs::write(cluster.path("naps.conf"), job).unwrap();
    let mut waits = cluster
        .tidemill()
        .arg("submit")
        .arg(cluster.path("naps.conf"))
        .spawn()
        .unwrap();
    wait("the mapper's job exists", || jobs(cluster, "running") == 1);
    cluster.signal_server(Signal::STOP);
    waits.kill().unwrap();
    waits.wait().unwrap();
    cluster.kill_server();
    cluster.start_server();
    wait("it has ended", || jobs(cluster, "running") == 0);
    let all = cluster.json(&["job", "list"]);
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), before + 1, "{all:#?}");
    assert!(all.iter().all(|job| job["name"] == "j.map"), "{all:#?}");
    wait("nothing is left of it", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}
