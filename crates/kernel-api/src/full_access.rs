//! Reads of input bytes that are not in the kernel's own files, by requests to the kernel's node through a pipe.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::{Mutex, PoisonError};

/// Maximum number of bytes in one read.
pub const READ_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a request, including the line end, in bytes.
const REQUEST_BYTES_MAX: usize = 4096;

/// Maximum size of the first line of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Reads bytes of an input, by its name in the job script, from `offset` of the whole file on, even if the kernel has only a part of the
/// input as a file. The bytes come from this node or, through this node, from another node. Returns the number of bytes; it is smaller than
/// requested only at the end of the file and for more than [`READ_BYTES_MAX`]. Programs may use this function, too; WebAssembly modules
/// can't.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) if the task does not set `access = "full"`, [`NotFound`](ErrorKind::NotFound) if no input has
/// the name; any other error if the bytes cannot be read now.
pub fn read(input: &str, offset: u64, into: &mut [u8]) -> Result<usize> {
    let pipes = std::env::var("TIDEMILL_READ");
    let pipes = pipes.map_err(|_| {
        let why = "the task does not say access = \"full\"";
        Error::new(ErrorKind::Unsupported, why)
    })?;
    ask(&pipes, input, offset, into)
}

/// Lock that makes threads take turns, because an answer belongs to the last request.
static TURN: Mutex<()> = Mutex::new(());

fn ask(pipes: &str, input: &str, offset: u64, into: &mut [u8]) -> Result<usize> {
    let request = format!("{offset} {} {input}\n", into.len().min(READ_BYTES_MAX));
    if request.len() > REQUEST_BYTES_MAX || input.contains('\n') {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "the name is not the name of an input",
        ));
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut answer = File::open(format!("{pipes}.answer"))?;
    let mut asks = OpenOptions::new()
        .write(true)
        .open(format!("{pipes}.ask"))?;
    asks.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    loop {
        let mut byte = [0];
        answer.read_exact(&mut byte)?;
        if byte == *b"\n" || head.len() == HEAD_BYTES_MAX {
            break;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    if let Some(refused) = head.strip_prefix('-') {
        let (errno, why) = refused.split_once(' ').unwrap_or((refused, ""));
        let kind = errno.parse().map(Error::from_raw_os_error);
        let kind = kind.map_or(ErrorKind::Other, |error| error.kind());
        return Err(Error::new(kind, why));
    }
    let count = head
        .parse::<usize>()
        .ok()
        .filter(|count| *count <= into.len());
    let count = count.ok_or(ErrorKind::InvalidData)?;
    answer.read_exact(&mut into[..count])?;
    Ok(count)
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::Command;

    /// Sends a request to a test peer at the other ends of the pipes, which answers with `answer`. Returns the result and the request.
    fn asked(name: &str, answer: &'static [u8], into: &mut [u8]) -> (Result<usize>, String) {
        let directory =
            std::env::temp_dir().join(format!("tidemill-{}-{name}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let pipes = directory.join("p").to_str().unwrap().to_owned();
        let both = |end: &str| {
            let path = format!("{pipes}.{end}");
            assert!(
                Command::new("mkfifo")
                    .arg(&path)
                    .status()
                    .unwrap()
                    .success()
            );
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        };
        let (requests, mut answers) = (both("ask"), both("answer"));
        let other = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(requests).read_line(&mut line).unwrap();
            answers.write_all(answer).unwrap();
            (line, answers)
        });
        let read = ask(&pipes, "a b", 7, into);
        let (line, _answers) = other.join().unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        (read, line)
    }

    #[test]
    fn full_access_read_returns_bytes_or_error_of_answer() {
        let mut into = [0; 5];
        let (read, line) = asked("good", b"3\nxyz", &mut into);
        assert_eq!((read.unwrap(), line.as_str()), (3, "7 5 a b\n"));
        assert_eq!(&into, b"xyz\0\0");
        let (read, _) = asked("none", b"-2 there is none\n", &mut into);
        let error = read.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::NotFound, "there is none")
        );
        for (name, wrong) in [("more", &b"6\nxyzxyz"[..]), ("noise", b"three\n")] {
            assert_eq!(
                asked(name, wrong, &mut into).0.unwrap_err().kind(),
                ErrorKind::InvalidData
            );
        }
        assert_eq!(read_without_pipes(), ErrorKind::Unsupported);
    }

    fn read_without_pipes() -> ErrorKind {
        read("a", 0, &mut [0]).unwrap_err().kind()
    }
}
