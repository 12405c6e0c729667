//! PMI version 1, as MPICH's processes speak it with their starter: lines of `name=value`, each with an answer. The module reads and writes
//! the connection of one process.
//!
//! Values that a rank puts are known to all ranks after the next barrier. Earlier values are not needed: no rank asks for them.

use super::BarrierValues;
use std::collections::BTreeMap;
use std::io;
use tidemill_sandbox::peers::RANKS_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const LINE_BYTES_MAX: usize = 8 << 10;

/// Maximum number of bytes that all ranks together may put.
const VALUES_BYTES_MAX: usize = 16 << 20;

/// Maximum length of names in bytes, as announced to processes.
const NAME_MAX: usize = 256;
const VALUE_MAX: usize = 1024;

/// Key with which ranks that use shared memory ask which ranks are on one host. The answer always puts each rank on a separate host.
const MAPPING: &str = "PMI_process_mapping";

/// Request of the process that concerns all ranks.
pub(super) enum PmiRequest {
    /// The rank waits at a barrier for the other ranks.
    Wait(BarrierValues),
    /// The rank has failed, so that all ranks fail.
    Abort(String),
    /// The connection has ended, or the process sent an invalid message.
    Gone,
}

/// Connection to one process.
#[derive(Debug)]
pub(super) struct Pmi {
    stream: UnixStream,
    pending: Vec<u8>,
    size: usize,
    known: BTreeMap<String, String>,
    known_bytes: usize,
    put: Vec<(String, String)>,
    /// Whether the function of the kernel has returned.
    pub(super) came_back: bool,
}

impl Pmi {
    pub(super) fn new(stream: UnixStream, size: usize) -> Self {
        let mapping = format!("(vector,(0,{size},1))");
        Self {
            stream,
            pending: Vec::new(),
            size: size.min(RANKS_MAX),
            known: BTreeMap::from([(MAPPING.to_owned(), mapping)]),
            known_bytes: 0,
            put: Vec::new(),
            came_back: false,
        }
    }

    /// Answers the process's requests until it sends a request for all ranks. The future is safe to cancel at any time.
    pub(super) async fn wish(&mut self) -> PmiRequest {
        loop {
            while let Some(line) = self.line() {
                match self.obey(&line) {
                    Ok(answer) if self.answer(&answer).await.is_ok() => {}
                    Ok(_) => return PmiRequest::Gone,
                    Err(wish) => return wish,
                }
            }
            if self.pending.len() > LINE_BYTES_MAX {
                return PmiRequest::Gone;
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes).await {
                Ok(length @ 1..) => self.pending.extend_from_slice(&bytes[..length]),
                _ => return PmiRequest::Gone,
            }
        }
    }

    /// Ends the barrier for the process, with the values that all ranks have put.
    pub(super) async fn go(&mut self, values: Vec<(String, String)>) -> io::Result<()> {
        for (name, value) in values {
            self.known_bytes += name.len() + value.len();
            self.known.insert(name, value);
        }
        self.answer("cmd=barrier_out").await
    }

    fn line(&mut self) -> Option<String> {
        let end = self.pending.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.pending.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// Sends an answer to the process. The few bytes fit into the buffer of the socket, unless the process reads no answers.
    async fn answer(&mut self, line: &str) -> io::Result<()> {
        self.stream.write_all(format!("{line}\n").as_bytes()).await
    }

    fn obey(&mut self, line: &str) -> Result<String, PmiRequest> {
        let mut fields = BTreeMap::new();
        for (name, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
            fields.insert(name, value);
        }
        let field = |name: &str| (*fields.get(name).unwrap_or(&"")).to_owned();
        Ok(match *fields.get("cmd").unwrap_or(&"") {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => {
                format!(
                    "cmd=maxes kvsname_max={NAME_MAX} keylen_max={NAME_MAX} vallen_max={VALUE_MAX}"
                )
            }
            "get_appnum" => "cmd=appnum appnum=0".to_owned(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=ranks".to_owned(),
            "get_universe_size" => format!("cmd=universe_size size={}", self.size),
            "put" => {
                self.known_bytes += line.len();
                if self.known_bytes > VALUES_BYTES_MAX {
                    return Err(PmiRequest::Gone);
                }
                self.put.push((field("key"), field("value")));
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "get" => match self.known.get(&field("key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
            },
            "finalize" => "cmd=finalize_ack".to_owned(),
            "barrier_in" => {
                let values = std::mem::take(&mut self.put);
                let ports = Vec::new();
                self.came_back |= field("last") == "yes";
                return Err(PmiRequest::Wait(BarrierValues { ports, values }));
            }
            "abort" => return Err(PmiRequest::Abort(field("exitcode"))),
            _ => return Err(PmiRequest::Gone),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pmi_process_gets_answers_and_waits_at_barrier() {
        let (own, mut process) = UnixStream::pair().unwrap();
        let mut pmi = Pmi::new(own, 3);
        let asked = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_universe_size\n\
            cmd=put kvsname=ranks key=a value=x=y\ncmd=get kvsname=ranks key=a\ncmd=barrier_in\n";
        process.write_all(asked.as_bytes()).await.unwrap();
        let PmiRequest::Wait(round) = pmi.wish().await else {
            panic!("it does not wait");
        };
        assert_eq!(round.values, [("a".to_owned(), "x=y".to_owned())]);
        pmi.go(round.values).await.unwrap();
        process
            .write_all(b"cmd=get kvsname=ranks key=a\ncmd=abort exitcode=7\n")
            .await
            .unwrap();
        assert!(matches!(pmi.wish().await, PmiRequest::Abort(code) if code == "7"));
        drop(pmi);
        let mut received = String::new();
        process.read_to_string(&mut received).await.unwrap();
        let received: Vec<&str> = received.lines().collect();
        assert_eq!(received[1], "cmd=universe_size size=3");
        assert_eq!(
            received[3],
            "cmd=get_result rc=-1 msg=key_not_found value=unknown"
        );
        assert_eq!(
            received[4..],
            [
                "cmd=barrier_out",
                "cmd=get_result rc=0 msg=success value=x=y"
            ]
        );
    }

    #[tokio::test]
    async fn malformed_pmi_line_ends_connection() {
        for bytes in [
            vec![b'x'; 3 * LINE_BYTES_MAX],
            b"cmd=spawn\n".to_vec(),
            vec![b'\n'],
        ] {
            let (own, mut process) = UnixStream::pair().unwrap();
            let mut pmi = Pmi::new(own, 1);
            process.write_all(&bytes).await.unwrap();
            assert!(matches!(pmi.wish().await, PmiRequest::Gone));
        }
    }
}
