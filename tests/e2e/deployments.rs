//! Tests the commands of docs/deployments.md exactly as printed, except for the paths of directories; and `examples/shallow-water`, which
//! needs one of them.

use crate::cluster::{Printed, can_mount, printed, wait};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A cluster that `tidemill up` started, stopped at the end.
struct Up {
    directory: tempfile::TempDir,
    dir: PathBuf,
}

impl Up {
    /// Runs the command of a section of the page, with its directories in a temporary one.
    fn of(section: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let page = std::fs::read_to_string(format!("{ROOT}/docs/deployments.md")).unwrap();
        let (_, text) = page.split_once(&format!("\n## {section}\n")).unwrap();
        let command = text.lines().find(|line| line.starts_with("tidemill "));
        Some(Self::run(command.unwrap()))
    }

    fn run(command: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("tidemill-e2e-")
            .tempdir()
            .unwrap();
        let root = directory.path().display().to_string();
        std::fs::create_dir_all(directory.path().join("pfs/run")).unwrap();
        let moved = command
            .replace("file:///", &format!("file://{root}/"))
            .replace(" /", &format!(" {root}/"))
            .replace(" ~/", &format!(" {root}/"));
        let words: Vec<&str> = moved.split_whitespace().collect();
        assert_eq!(
            (words[1], words[3]),
            ("--dir", "up"),
            "{command}: stopped processes"
        );
        let up = Self {
            dir: words[2].into(),
            directory,
        };
        let printed = printed(tidemill().args(&words[1..]).output().unwrap());
        assert!(printed.ok, "{moved}\n{}{}", printed.out, printed.err);
        up
    }

    fn tidemill(&self, args: &[&str]) -> Printed {
        let mut command = tidemill();
        command.arg("--dir").arg(&self.dir).arg("--json");
        printed(command.args(args).output().unwrap())
    }

    fn json(&self, args: &[&str]) -> Value {
        let printed = self.tidemill(args);
        assert!(printed.ok, "{args:?}: {}{}", printed.out, printed.err);
        serde_json::from_str(&printed.out).unwrap()
    }

    /// Returns a path below the mount.
    fn at(&self, relative: &str) -> PathBuf {
        self.dir.join("mnt").join(relative)
    }

    fn pfs(&self, relative: &str) -> PathBuf {
        self.directory.path().join("pfs").join(relative)
    }

    fn nodes(&self) -> Vec<u64> {
        let status = self.json(&["status"]);
        let nodes = status["nodes"].as_array().unwrap().iter();
        nodes.map(|one| one["node"].as_u64().unwrap()).collect()
    }

    /// Returns the nodes that have a replica of a file.
    fn replicas(&self, path: &str) -> Vec<u64> {
        let layout = self.json(&["stat", path]);
        let replicas = layout["parts"][0]["replicas"].as_array().unwrap().iter();
        replicas.map(|one| one["node"].as_u64().unwrap()).collect()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let down = self.tidemill(&["down", "--force"]);
        let memory = self.dir.join("node-999");
        if memory.exists() {
            let _ = Command::new("umount").arg("-l").arg(memory).status();
        }
        assert!(down.ok || std::thread::panicking(), "{}", down.err);
    }
}

fn tidemill() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tidemill"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// New files stay on the disk and in the memory of the host, and files of the backend are read in place.
#[test]
fn accelerator_deployment_stores_files_and_reads_backend() {
    let Some(up) = Up::of("Accelerator on compute nodes") else {
        return;
    };
    assert_eq!(up.nodes(), [0, 997, 999]);
    std::fs::create_dir(up.pfs("input")).unwrap();
    std::fs::write(up.pfs("input/a"), "from the backend\n").unwrap();
    let address = format!("file://{}", up.pfs("").display());
    up.json(&["remote", "add", "pfs", address.trim_end_matches('/')]);
    up.json(&["cp", "--no-copy", "pfs:input/*", "/input"]);
    assert_eq!(read(&up.at("input/a")), "from the backend\n");
    assert_eq!(up.replicas("/input/a"), [997]);
    std::fs::create_dir(up.at("memory")).unwrap();
    let named = ["-n", "user.tidemill.tier", "-v", "memory"];
    let set = Command::new("setfattr")
        .args(named)
        .arg(up.at("memory"))
        .status();
    assert!(set.unwrap().success());
    for (path, node) in [("made", 0), ("memory/made", 999)] {
        std::fs::copy(up.at("input/a"), up.at(path)).unwrap();
        wait("it is sealed", || {
            !up.tidemill(&["cat", path]).out.is_empty()
        });
        assert_eq!(up.replicas(&format!("/{path}")), [node]);
    }
    let names = std::fs::read_dir(up.pfs("")).unwrap().count();
    assert_eq!(names, 2, "no file is in the backend");
}

/// Closed files are copied to the store without a command, and are read through the cluster when no other replica exists.
#[test]
fn forwarder_deployment_stores_closed_files_in_backend() {
    let Some(up) = Up::of("Forwarder") else {
        return;
    };
    assert_eq!(up.nodes(), [997]);
    std::fs::create_dir(up.at("step")).unwrap();
    std::fs::write(up.at("step/1"), "forwarded\n").unwrap();
    wait("it is in the backend", || {
        read(&up.pfs("run/step/1")) == "forwarded\n"
    });
    assert_eq!(up.replicas("/step/1"), [997]);
    std::fs::write(up.at("step/1"), "again\n").unwrap();
    wait("so is the file that replaced it", || {
        read(&up.pfs("run/step/1")) == "again\n"
    });
    assert_eq!(read(&up.at("step/1")), "again\n");
    assert!(up.tidemill(&["down"]).ok);
    let again = up.json(&["up"]);
    assert_eq!(again["nodes"], serde_json::json!([997]));
    assert_eq!(read(&up.at("step/1")), "again\n");
}

/// The tier takes new files and maps them, and they are staged out to the store.
#[test]
fn burst_buffer_deployment_maps_and_stages_out_new_files() {
    let Some(up) = Up::of("Burst buffer") else {
        return;
    };
    assert_eq!(up.nodes(), [997, 998]);
    std::fs::create_dir(up.at("run")).unwrap();
    let hook = ["--map", "wordcount", "--result", "count/{stem}"];
    up.json(&[&["rule", "create", "/run/*.txt"][..], &hook].concat());
    std::fs::write(up.at("run/a.txt"), "a b\n").unwrap();
    wait("it is mapped", || {
        read(&up.at("run/count/a")).starts_with("1 2 4")
    });
    assert_eq!(up.replicas("/run/a.txt"), [998]);
    up.tidemill(&["stage", "out", "/", "--evict", "--wait"]);
    assert_eq!(read(&up.pfs("run/run/a.txt")), "a b\n");
    assert_eq!(up.replicas("/run/a.txt"), [997]);
    assert_eq!(read(&up.at("run/a.txt")), "a b\n");
    // The next start has the same cluster, without unrequested nodes.
    assert!(up.tidemill(&["down"]).ok);
    assert_eq!(up.json(&["up"])["nodes"], serde_json::json!([998, 997]));
}

/// Files are stored on all nodes, and a job runs where its files are.
#[test]
fn whole_storage_deployment_keeps_files_on_its_nodes() {
    let Some(up) = Up::of("Whole storage") else {
        return;
    };
    assert_eq!(up.nodes(), [0, 1, 2, 3]);
    let names: Vec<String> = (0..8).map(|number| format!("f{number}")).collect();
    for name in &names {
        std::fs::write(up.at(name), "1 2\n").unwrap();
    }
    let mut used = Vec::new();
    for name in &names {
        let path = format!("/{name}");
        wait("it is sealed", || up.tidemill(&["stat", &path]).ok);
        used.extend(up.replicas(&path));
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used, [0, 1, 2, 3]);
    let script = up.directory.path().join("job.conf");
    let task = "{ name = \"t\"; kernel = \"wordcount\"; input = [\"f0\"]; output = [\"n\"]; stdout = \"n\"; }";
    std::fs::write(
        &script,
        format!("name = \"count\"; workdir = \"/\"; tasks = ( {task} );"),
    )
    .unwrap();
    up.tidemill(&["submit", "--watch", script.to_str().unwrap()]);
    assert_eq!(read(&up.at("n")), "1 2 4\n");
    assert_eq!(up.replicas("/n"), up.replicas("/f0"));
}

/// Returns the surface in a file of the model: its values are the first of the three fields at the end.
fn surface(file: &Path, side: usize) -> Vec<f32> {
    let bytes = std::fs::read(file).unwrap();
    let field = 4 * side * side;
    let begin = bytes.len() - 3 * field;
    let values = bytes[begin..begin + field].chunks_exact(4);
    values
        .map(|value| f32::from_be_bytes(value.try_into().unwrap()))
        .collect()
}

/// Decodes PNGs and prints a line for each: columns, rows, and a hash of the pixels. Checksums must be right.
const DECODE: &str = r#"
import hashlib, struct, sys, zlib
for path in sys.argv[1:]:
    data, at, parts = open(path, "rb").read(), 8, []
    assert data[:8] == b"\x89PNG\r\n\x1a\n", path
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8:at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + body), path
        parts.append((kind, body))
        at += 12 + size
    assert parts[0][0] == b"IHDR" and parts[-1] == (b"IEND", b""), path
    columns, rows, depth, colours = struct.unpack_from(">IIBB", parts[0][1])
    pixels = zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT"))
    assert (depth, colours) == (8, 2) and len(pixels) == rows * (1 + 3 * columns), path
    print(columns, rows, len(set(pixels)), hashlib.sha256(pixels).hexdigest())
"#;

/// The two commands of the example: a model writes files, the found extremes are the extremes of these files, and each
/// step has a picture.
#[test]
fn shallow_water_example_finds_extremes_and_draws_pictures() {
    const SIDE: usize = 48;
    const FILES: usize = 5;
    if !can_mount() {
        return;
    }
    let readme = read(Path::new(&format!(
        "{ROOT}/examples/shallow-water/README.md"
    )));
    let mut commands = readme
        .lines()
        .filter(|line| line.starts_with("tidemill up"));
    let first = commands.next().unwrap().split_once(" up").unwrap().1;
    let (first, _) = first.split_once('#').unwrap();
    let up = Up::run(&format!("tidemill --dir /cluster up{first}"));
    let mut run = Command::new(format!("{ROOT}/examples/shallow-water/run.sh"));
    run.args([FILES.to_string(), SIDE.to_string()]);
    run.env("TIDEMILL", env!("CARGO_BIN_EXE_tidemill"));
    run.env("TIDEMILL_DIR", &up.dir);
    run.env("MILLISECONDS_EACH", "1");
    let printed = printed(run.output().unwrap());
    assert!(printed.ok, "{}{}", printed.out, printed.err);
    let mut pictures = Vec::new();
    let mut water = Vec::new();
    for number in 1..=FILES {
        let stem = format!("sea-{number:04}");
        let values = surface(&up.at(&format!("sea/{stem}.nc")), SIDE);
        let low = values.iter().copied().fold(f32::MAX, f32::min);
        let high = values.iter().copied().fold(f32::MIN, f32::max);
        let found = read(&up.at(&format!("sea/extremes/{stem}.csv")));
        for extreme in [low, high] {
            let is_there = found
                .split([',', '\n'])
                .any(|one| one.parse() == Ok(extreme));
            assert!(is_there, "{extreme} is not in {found}");
        }
        assert!(low < high);
        water.push(values.iter().copied().map(f64::from).sum::<f64>());
        pictures.push(up.at(&format!("sea/quicklook/{stem}.png")));
    }
    // The amount of water is constant, except for rounding in the files.
    assert!(water.iter().all(|sum| (sum - water[0]).abs() < 1e-2));
    let decoded = Command::new("python3")
        .args(["-c", DECODE])
        .args(pictures)
        .output();
    let decoded = crate::cluster::printed(decoded.unwrap());
    assert!(decoded.ok, "{}", decoded.err);
    let lines: Vec<&str> = decoded.out.lines().collect();
    let different: std::collections::BTreeSet<&&str> = lines.iter().collect();
    assert_eq!((lines.len(), different.len()), (FILES, FILES));
    let size = format!("{SIDE} {SIDE} ");
    assert!(lines.iter().all(|line| line.starts_with(&size)));
}
