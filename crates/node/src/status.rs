//! Status object of the node: its capacity, its activity, and the run times of kernels. The module writes the object's attributes; the
//! node also sends the status to the server (next: `server/src/cluster.rs`).
//!
//! Counters are updated in memory. Periodically they are written as attribute page 3 of the status object (AnalyzeThis §3.1.1, "AFE
//! Status") and sent to the server.

use crate::{flash_model, records};
use parking_lot::Mutex;
use rusqlite::Connection;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_model::attribute::status;
use tidemill_model::event::History;
use tidemill_model::id::ObjectId;
use tidemill_wire::v1;

/// Maximum number of kernels whose run times are kept. The kernel with the fewest runs is removed first.
const KERNELS_MAX: usize = 4096;

/// Counters of the node's work.
#[derive(Debug, Default)]
pub struct NodeCounters {
    bytes_written: AtomicU64,
    bytes_read: AtomicU64,
    history: Mutex<BTreeMap<String, History>>,
    /// Bytes that arrived over HTTP, for objects that are not sealed yet.
    arriving: Mutex<HashMap<ObjectId, u64>>,
}

/// Form in which the database stores a history of run times.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct StoredHistory {
    runs: u64,
    total_ns: u64,
    input_bytes: u64,
}

impl NodeCounters {
    /// Loads the counters from the database.
    ///
    /// # Errors
    /// SQLite returns an error. An unreadable history becomes empty.
    pub fn load(connection: &Connection) -> Result<Self, rusqlite::Error> {
        let number = |number| {
            let value = records::attribute(connection, ObjectId::STATUS, status::PAGE, number)?;
            let bytes = value.and_then(|value| <[u8; 8]>::try_from(value).ok());
            Ok::<_, rusqlite::Error>(bytes.map_or(0, u64::from_le_bytes))
        };
        let history =
            records::attribute(connection, ObjectId::STATUS, status::PAGE, status::HISTORY)?
                .and_then(|json| {
                    serde_json::from_slice::<BTreeMap<String, StoredHistory>>(&json).ok()
                })
                .unwrap_or_default();
        let history = history.into_iter().map(|(name, kept)| {
            let history = History {
                runs: kept.runs,
                total_ns: kept.total_ns,
                input_bytes: kept.input_bytes,
            };
            (name, history)
        });
        Ok(Self {
            bytes_written: AtomicU64::new(number(status::BYTES_WRITTEN)?),
            bytes_read: AtomicU64::new(number(status::BYTES_READ)?),
            history: Mutex::new(history.collect()),
            arriving: Mutex::default(),
        })
    }

    /// Counts bytes of an object that arrived over HTTP.
    pub fn on_arrived(&self, object: ObjectId, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        *self.arriving.lock().entry(object).or_default() += bytes;
    }

    /// Counts a client's sealed object of `allocated` bytes on the device. Bytes that did not arrive over HTTP were written directly.
    pub fn on_sealed(&self, object: ObjectId, allocated: u64) {
        let arrived = self.arriving.lock().remove(&object).unwrap_or(0);
        let in_place = allocated.saturating_sub(arrived);
        self.bytes_written.fetch_add(in_place, Ordering::Relaxed);
    }

    /// Returns the number of bytes written since the first start of the node.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }

    /// Removes the count of arrived bytes of a removed object.
    pub fn on_removed(&self, object: ObjectId) {
        self.arriving.lock().remove(&object);
    }

    /// Counts bytes that a task wrote or that the node fetched.
    pub fn on_written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a successful run of a kernel, which took `run_ns` nanoseconds for `input_bytes` bytes.
    pub fn on_run(&self, kernel: &str, run_ns: u64, input_bytes: u64) {
        self.bytes_read.fetch_add(input_bytes, Ordering::Relaxed);
        let mut history = self.history.lock();
        if !history.contains_key(kernel) && history.len() >= KERNELS_MAX {
            let rarest = history.iter().min_by_key(|(_, h)| h.runs);
            if let Some(name) = rarest.map(|(name, _)| name.clone()) {
                history.remove(&name);
            }
        }
        let entry = history.entry(kernel.to_owned()).or_default();
        entry.runs += 1;
        entry.total_ns = entry.total_ns.saturating_add(run_ns);
        entry.input_bytes = entry.input_bytes.saturating_add(input_bytes);
    }

    /// Adds the counters to a status.
    pub fn report(&self, node: &mut v1::Node) {
        node.bytes_written = self.bytes_written.load(Ordering::Relaxed);
        node.bytes_read = self.bytes_read.load(Ordering::Relaxed);
        node.load_milli = load_milli();
        let history = self.history.lock();
        node.history = history
            .iter()
            .map(|(name, h)| {
                let history = v1::KernelHistory {
                    runs: h.runs,
                    total_ns: h.total_ns,
                    input_bytes: h.input_bytes,
                };
                (name.clone(), history)
            })
            .collect();
    }
}

/// Returns the changes since the last sent status, if only the frequently changing fields have changed. The server already has the run
/// times of kernels, from the outcomes of labels.
#[must_use]
pub fn standing(reported: &v1::Node, now: &v1::Node) -> Option<v1::Standing> {
    let rest = |node: &v1::Node| v1::Node {
        running: 0,
        queued: 0,
        free_bytes: 0,
        bytes_written: 0,
        bytes_read: 0,
        load_milli: 0,
        history: [].into(),
        flash_model: None,
        disk: None,
        ..node.clone()
    };
    (rest(reported) == rest(now)).then_some(v1::Standing {
        running: now.running,
        queued: now.queued,
        free_bytes: now.free_bytes,
        bytes_written: now.bytes_written,
        bytes_read: now.bytes_read,
        load_milli: now.load_milli,
    })
}

/// Returns the attributes of the status object for the status `node`.
#[must_use]
pub fn attributes(node: &v1::Node) -> Vec<(u32, Vec<u8>)> {
    let history: BTreeMap<&str, StoredHistory> = node
        .history
        .iter()
        .map(|(name, h)| {
            let kept = StoredHistory {
                runs: h.runs,
                total_ns: h.total_ns,
                input_bytes: h.input_bytes,
            };
            (name.as_str(), kept)
        })
        .collect();
    let numbers = [
        (status::CAPACITY_BYTES, node.capacity_bytes),
        (status::FREE_BYTES, node.free_bytes),
        (status::CORES, node.cores.into()),
        (status::RUNNING, node.running.into()),
        (status::QUEUED, node.queued.into()),
        (status::BYTES_WRITTEN, node.bytes_written),
        (status::BYTES_READ, node.bytes_read),
        (status::LOAD_MILLI, node.load_milli.into()),
    ];
    let mut attributes: Vec<(u32, Vec<u8>)> = numbers
        .into_iter()
        .map(|(number, value)| (number, value.to_le_bytes().to_vec()))
        .collect();
    let history = serde_json::to_vec(&history).unwrap_or_default();
    attributes.push((status::HISTORY, history));
    if let Some(model) = &node.flash_model {
        let json = flash_model::json(model).to_string();
        attributes.push((status::FLASH_MODEL, json.into_bytes()));
    }
    attributes
}

/// Returns the attributes that change only by the work of the node. Other programs of the host change its free space and load all the time, and
/// an idle node commits nothing for them.
#[must_use]
pub fn own(attributes: &[(u32, Vec<u8>)]) -> Vec<(u32, Vec<u8>)> {
    let host = [status::FREE_BYTES, status::LOAD_MILLI];
    let own = attributes.iter();
    own.filter(|(number, _)| !host.contains(number))
        .cloned()
        .collect()
}

/// Returns the one-minute load average of the host in thousandths; 0 if it is unknown.
fn load_milli() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split_whitespace().next().unwrap_or("0");
    let (whole, part) = first.split_once('.').unwrap_or((first, "0"));
    let whole: u32 = whole.parse().unwrap_or(0);
    // Linux prints two digits.
    let hundredths: u32 = part.parse().unwrap_or(0);
    whole
        .saturating_mul(1000)
        .saturating_add(hundredths.saturating_mul(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_sends_only_frequent_fields_unless_others_change() {
        let reported = v1::Node {
            node: 3,
            running: 1,
            free_bytes: 10,
            ..v1::Node::default()
        };
        let mut now = reported.clone();
        now.queued = 7;
        now.free_bytes = 5;
        now.history = [("mean".to_owned(), v1::KernelHistory::default())].into();
        let reported_now = standing(&reported, &now).unwrap();
        assert_eq!(
            (
                reported_now.running,
                reported_now.queued,
                reported_now.free_bytes
            ),
            (1, 7, 5)
        );
        now.trouble = "its disk is full".to_owned();
        assert_eq!(standing(&reported, &now), None);
    }

    #[test]
    fn kernel_run_times_and_counters_survive_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.db");
        drop(crate::db::Db::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        let counters = NodeCounters::load(&connection).unwrap();
        counters.on_run("mean", 10, 100);
        counters.on_run("mean", 30, 100);
        counters.on_arrived(ObjectId(1), 5);
        counters.on_sealed(ObjectId(1), 7);
        let mut node = v1::Node::default();
        counters.report(&mut node);
        assert_eq!((node.bytes_written, node.bytes_read), (7, 200));
        records::put_status(&connection, &attributes(&node)).unwrap();
        let mut again = v1::Node::default();
        NodeCounters::load(&connection).unwrap().report(&mut again);
        assert_eq!(again.history, node.history);
        assert_eq!(again.history["mean"].total_ns, 40);
        assert_eq!(again.bytes_written, 7);
    }
}
