//! Measures the duration of lineage queries in a large graph.
//!
//! `cargo run --release -p tidemill-server --example lineage_speed -- [VERSIONS [QUESTIONS]]` fills a new database with workflows of
//! several sizes, by default with a million versions in all. The program then queries the ancestors and descendants of random files through
//! the server's socket, as an ordinary user whose rights the server checks for each file. The program prints a line of JSON for each size
//! of workflow.
#![allow(clippy::print_stdout, reason = "its output")]

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Instant;
use tidemill_client::{Endpoint, Server as Client};
use tidemill_server::{RunningServer, ServeConfig};
use tidemill_wire::v1;

type BoxedError = Box<dyn std::error::Error>;

const SEED: u64 = 7;
const UID: u32 = 1000;
/// Number of versions in one workflow, for each measured size.
const SIZES: [i64; 3] = [10, 100, 300];
/// Number of preceding versions from which a task chooses its inputs.
const WINDOW: i64 = 30;
/// First inode and object id of the example.
const FIRST: i64 = 1000;
const SPEC: &str = r#"{"name":"step","kernel_kind":"builtin","kernel":"max","args":["a","b"],"stages":[],"inputs":[],
"outputs":[],"stdin":null,"stdout":null,"node":null,"retries":0,"time_ns_max":0,"memory_bytes_max":0,
"output_bytes_max":0,"lifetime":"keep"}"#;

/// Inserts workflows of one size. Each version except the first few has up to three earlier versions as inputs.
fn fill(
    db: &Connection,
    size: i64,
    from: i64,
    count: i64,
    random: &mut StdRng,
) -> Result<(), BoxedError> {
    let mut inode = db.prepare(
        "INSERT INTO inode VALUES (?1, 1, 420, ?2, ?2, 1, 100, 1, 1, 1, 0, 1, ?1, 0, 0, 0, NULL)",
    )?;
    let mut directory = db.prepare(
        "INSERT INTO inode VALUES (?1, 2, 493, ?2, ?2, 2, 4096, 1, 1, 1, 0, 0, 0, -1, 0, 1, NULL)",
    )?;
    let mut entry = db.prepare("INSERT INTO dirent VALUES (?1, ?2, ?3)")?;
    let mut version =
        db.prepare("INSERT INTO version VALUES (?1, ?1, 1, 100, 0, ?2, 1, ?1, ?3, 0)")?;
    let mut task =
        db.prepare("INSERT INTO task(task, job, spec, state, changed) VALUES (?1, 1, ?2, 5, 1)")?;
    let mut input = db.prepare("INSERT INTO task_input VALUES (?1, ?2, 'in', ?3, '')")?;
    let mut output = db.prepare("INSERT INTO task_output VALUES (?1, 0, 'out', ?1, ?1, 0, 100)")?;
    for start in (from..from + count).step_by(usize::try_from(size)?) {
        // Objects, inodes and tasks have the same numbers; the number of the directory is unused by them.
        let dir = start + (1 << 40);
        directory.execute(params![dir, UID])?;
        entry.execute(params![1, format!("w{start}").into_bytes(), dir])?;
        for id in start..(start + size).min(from + count) {
            let name = format!("file{id}");
            inode.execute(params![id, UID])?;
            entry.execute(params![dir, name.as_bytes(), id])?;
            version.execute(params![id, UID, format!("/w{start}/{name}").into_bytes()])?;
            task.execute(params![id, SPEC])?;
            output.execute([id])?;
            for seq in 0..random.random_range(1..=3_i64) {
                let first = (id - WINDOW).max(start);
                if first < id {
                    input.execute(params![id, seq, random.random_range(first..id)])?;
                }
            }
        }
    }
    Ok(())
}

async fn start(directory: &Path) -> Result<(RunningServer, Client), BoxedError> {
    let server = RunningServer::start(ServeConfig::new(directory)).await?;
    let client = Client::connect(&Endpoint::Unix(server.socket().into()), None).await?;
    Ok((server, client))
}

#[tokio::main]
async fn main() -> Result<(), BoxedError> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<i64>());
    let versions = numbers.next().transpose()?.unwrap_or(1_000_000);
    let questions = numbers.next().transpose()?.unwrap_or(2000);
    let directory = tempfile::tempdir()?;
    let (server, client) = start(directory.path()).await?;
    drop(client);
    server.shutdown().await;
    let mut random = StdRng::seed_from_u64(SEED);
    let each = versions / 3;
    let ranges: Vec<(i64, i64)> = (0..).map(|at| FIRST + at * each).zip(SIZES).collect();
    let mut db = Connection::open(directory.path().join("server.db"))?;
    let transaction = db.transaction()?;
    transaction.execute(
        "INSERT INTO job(job, name, source, workdir, uid, gid, groups, state, submitted, ended, script) \
         VALUES (1, 'bench', '', '', ?1, ?1, '[]', 5, 1, 1, '')",
        [UID],
    )?;
    for (from, size) in &ranges {
        fill(&transaction, *size, *from, each, &mut random)?;
    }
    transaction.commit()?;
    drop(db);
    let (server, client) = start(directory.path()).await?;
    let mut lineage = client.lineage();
    for (from, size) in ranges {
        let (mut times, mut vertices) = (Vec::new(), 0);
        for _ in 0..questions {
            let question = v1::LineageRequest {
                credentials: Some(v1::Credentials {
                    uid: UID + 1,
                    ..v1::Credentials::default()
                }),
                object: random.random_range(from..from + each).cast_unsigned(),
                up: true,
                down: true,
                ..v1::LineageRequest::default()
            };
            let asked = Instant::now();
            let reply = lineage.query(question).await?.into_inner();
            times.push(asked.elapsed().as_nanos());
            vertices += reply.versions.len() + reply.runs.len();
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100] / 1000;
        println!(
            "{{\"bench\": \"lineage_speed\", \"seed\": {SEED}, \"versions\": {versions}, \"workflow\": {size}, \
             \"questions\": {questions}, \"vertices_mean\": {}, \"p50_us\": {}, \"p99_us\": {}}}",
            vertices / times.len(),
            at(50),
            at(99)
        );
    }
    server.shutdown().await;
    Ok(())
}
