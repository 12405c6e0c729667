//! `encrypt` and `decrypt`: AES-256-GCM in chunks. Each chunk is authentic by itself and at its position, so a file of any size is
//! encrypted and decrypted as a stream, and no output is written that is not authentic. This is the construction STREAM (Hoang,
//! Reyhanitabar, Rogaway and Vizár, "Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", 2015, §7).
//!
//! The user's key is a file, one of the task's inputs that `key=` names, so labels, lineage and lists of processes contain only its name.
//! Each file is encrypted with a separate key, derived by HKDF (RFC 5869) from the user's key and 32 random bytes, so no nonce, which is a
//! chunk number, is used twice with one key. The format:
//!
//! | bytes | |
//! |---|---|
//! | 0 to 8 | `TIDE-AES` |
//! | 8 | version, 1 |
//! | 9 | 16: the logarithm of a chunk's size, 64 KiB |
//! | 10 to 16 | 0 |
//! | 16 to 48 | salt: random |
//! | 48 to 80 | check: confirms that the user's key is the key of this file |
//! | then | chunks of 64 KiB, the last may be shorter, and empty only if it is the only one; a tag of 16 bytes follows each chunk |
//!
//! HKDF-SHA-256 with the key, the salt, and `tidemill encrypt` and bytes 0 to 16 as information gives 64 bytes: the file's AES key and
//! the check. The nonce of a chunk is its number from 0, in 11 bytes, most significant byte first, and a byte that is 1 for the last
//! chunk and 0 for the others. So a changed, missing, additional or moved chunk is not authentic, and neither is a false end.

use std::io::Write;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, KeyType};
use rustix::rand::{GetRandomFlags, getrandom};

use super::BuiltinError;
use super::series::open;
use super::table::{
    BuiltinKernel, FoldInput, INPUT, KernelArgument, KernelConstructor, KernelOptions,
};
use crate::fold::Stream;

/// Kernels `encrypt` and `decrypt`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    BuiltinKernel {
        name: "decrypt",
        revision: 1,
        help: "the decrypted input, if key and content are authentic",
        args: &[KEY],
        usage: None,
        prepare: None,
        code: KernelConstructor::Stream(FoldInput::Bytes, |options| {
            let key = key(options)?;
            Ok(Box::new(Decrypt::new(key)))
        }),
    },
    BuiltinKernel {
        name: "encrypt",
        revision: 1,
        help: "all inputs as one, encrypted and authenticated by AES-256-GCM",
        args: &[KEY],
        usage: None,
        prepare: None,
        code: KernelConstructor::Stream(FoldInput::Bytes, |options| {
            let key = key(options)?;
            let mut salt = [0; SALT_BYTES];
            let chance = getrandom(&mut salt, GetRandomFlags::empty());
            chance.map_err(|error| BuiltinError::Chance(error.into()))?;
            Ok(Box::new(Encrypt::new(&key, salt)))
        }),
    },
];

const KEY: &[KernelArgument] = &[KernelArgument {
    key: "key",
    values: INPUT,
    default: "",
    help: "name of the input that holds the key: 32 bytes, or 64 hexadecimal digits",
}];

const FORMAT: &str = "encrypted";
const MAGIC: &[u8; 8] = b"TIDE-AES";
const VERSION: u8 = 1;
const CHUNK_BITS: u8 = 16;
const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
const TAG_BYTES: usize = 16;
const SALT_BYTES: usize = 32;
const HEADER_BYTES: usize = 80;

/// Number of chunks that are written at a time.
const CHUNKS_AT_ONCE: usize = 16;

/// Key that the user provides.
type CipherKey = [u8; 32];

/// Reads the user's key from the input that `key=` names.
fn key(options: &KernelOptions) -> Result<CipherKey, BuiltinError> {
    let name = options.needed("key", options.text("key"))?;
    let file = open(name)?;
    if let Ok(key) = CipherKey::try_from(&*file) {
        return Ok(key);
    }
    let text = file.trim_ascii();
    let mut key = CipherKey::default();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let whole = text.len() == 2 * key.len();
    for (byte, pair) in key.iter_mut().zip(text.chunks(2)) {
        let value = digit(pair[0]).zip(pair.get(1).and_then(|low| digit(*low)));
        let value = value.filter(|_| whole);
        let (high, low) = value.ok_or_else(|| BuiltinError::NoKey { name: name.into() })?;
        *byte = u8::try_from(high << 4 | low).expect("two digits are a byte");
    }
    if whole {
        return Ok(key);
    }
    Err(BuiltinError::NoKey { name: name.into() })
}

/// Returns the first 16 bytes of the format, before the salt.
fn start() -> [u8; 16] {
    let mut start = [0; 16];
    start[..8].copy_from_slice(MAGIC);
    start[8] = VERSION;
    start[9] = CHUNK_BITS;
    start
}

/// Length of the bytes that HKDF derives: the AES key and the check.
struct Derived;

impl KeyType for Derived {
    fn len(&self) -> usize {
        64
    }
}

/// AES key of one file, and number of its chunks so far.
struct Chunks {
    key: LessSafeKey,
    number: u64,
}

impl std::fmt::Debug for Chunks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunks")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Chunks {
    /// Derives the AES key of a file, and the check that confirms the user's key.
    fn derive(key: &CipherKey, start: &[u8; 16], salt: &[u8; SALT_BYTES]) -> (Self, [u8; 32]) {
        let mut derived = [0; 64];
        hkdf::Salt::new(HKDF_SHA256, salt)
            .extract(key)
            .expand(&[b"tidemill encrypt", start], Derived)
            .and_then(|material| material.fill(&mut derived))
            .expect("64 bytes are less than the maximum of HKDF");
        let key = UnboundKey::new(&AES_256_GCM, &derived[..32]).expect("the key has 32 bytes");
        let mut check = [0; 32];
        check.copy_from_slice(&derived[32..]);
        let key = LessSafeKey::new(key);
        (Self { key, number: 0 }, check)
    }

    /// Returns the nonce of the next chunk.
    fn nonce(&mut self, last: bool) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[3..11].copy_from_slice(&self.number.to_be_bytes());
        nonce[11] = u8::from(last);
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts a chunk and appends it to `out`.
    fn seal(&mut self, chunk: &[u8], last: bool, out: &mut Vec<u8>) {
        let place = out.len();
        out.extend_from_slice(chunk);
        let nonce = self.nonce(last);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut out[place..]);
        let tag = sealed.expect("a chunk is far shorter than the maximum of AES-GCM");
        out.extend_from_slice(tag.as_ref());
    }

    /// Decrypts a chunk and appends it to `out`, if it is authentic.
    fn open(&mut self, chunk: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), BuiltinError> {
        let offset = HEADER_BYTES as u64 + self.number * (CHUNK_BYTES + TAG_BYTES) as u64;
        let wrong = |what: &str| BuiltinError::Corrupt {
            format: FORMAT,
            offset,
            what: what.to_owned(),
        };
        // A single empty chunk means no content; an empty chunk after others is invalid.
        if chunk.len() < TAG_BYTES || (chunk.len() == TAG_BYTES && self.number > 0) {
            return Err(BuiltinError::CutShort(FORMAT));
        }
        let place = out.len();
        out.extend_from_slice(chunk);
        let nonce = self.nonce(last);
        let opened = self
            .key
            .open_in_place(nonce, Aad::empty(), &mut out[place..])
            .map(|content| content.len());
        let length = opened.map_err(|_| {
            out.truncate(place);
            wrong("it was changed, moved, or cut short here")
        })?;
        out.truncate(place + length);
        Ok(())
    }
}

/// Cuts bytes into chunks of equal size, and holds back the last chunk until more bytes arrive.
#[derive(Debug)]
struct Cutter {
    size: usize,
    held: Vec<u8>,
}

impl Cutter {
    fn new(size: usize) -> Self {
        let held = Vec::with_capacity(size);
        Self { size, held }
    }

    /// Passes on all chunks except the last.
    fn take(
        &mut self,
        mut bytes: &[u8],
        mut piece: impl FnMut(&[u8]) -> Result<(), BuiltinError>,
    ) -> Result<(), BuiltinError> {
        if !self.held.is_empty() {
            let (first, rest) = bytes.split_at(bytes.len().min(self.size - self.held.len()));
            self.held.extend_from_slice(first);
            if rest.is_empty() {
                return Ok(());
            }
            piece(&self.held)?;
            self.held.clear();
            bytes = rest;
        }
        while bytes.len() > self.size {
            let (first, rest) = bytes.split_at(self.size);
            piece(first)?;
            bytes = rest;
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }
}

/// Stream of the kernel `encrypt`.
#[derive(Debug)]
struct Encrypt {
    chunks: Chunks,
    cutter: Cutter,
    /// Bytes that are about to be written: initially the header of the format.
    out: Vec<u8>,
}

impl Encrypt {
    fn new(key: &CipherKey, salt: [u8; SALT_BYTES]) -> Self {
        let start = start();
        let (chunks, check) = Chunks::derive(key, &start, &salt);
        let space = HEADER_BYTES + CHUNKS_AT_ONCE * (CHUNK_BYTES + TAG_BYTES);
        let mut out = Vec::with_capacity(space);
        out.extend(start);
        out.extend(salt);
        out.extend(check);
        let cutter = Cutter::new(CHUNK_BYTES);
        Self {
            chunks,
            cutter,
            out,
        }
    }
}

impl Stream for Encrypt {
    fn push(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let (chunks, ready) = (&mut self.chunks, &mut self.out);
        self.cutter.take(bytes, |chunk| {
            chunks.seal(chunk, false, ready);
            write_many(ready, out)
        })
    }

    fn finish(mut self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        self.chunks.seal(&self.cutter.held, true, &mut self.out);
        out.write_all(&self.out).map_err(BuiltinError::Write)
    }
}

/// Writes the ready chunks if there are enough of them.
fn write_many(ready: &mut Vec<u8>, out: &mut dyn Write) -> Result<(), BuiltinError> {
    if ready.len() >= CHUNKS_AT_ONCE * CHUNK_BYTES {
        out.write_all(ready).map_err(BuiltinError::Write)?;
        ready.clear();
    }
    Ok(())
}

/// Stream of the kernel `decrypt`.
#[derive(Debug)]
struct Decrypt {
    key: CipherKey,
    header: Vec<u8>,
    /// Chunks of the file; `None` before the header was read.
    chunks: Option<Chunks>,
    cutter: Cutter,
    out: Vec<u8>,
}

impl Decrypt {
    fn new(key: CipherKey) -> Self {
        Self {
            key,
            header: Vec::with_capacity(HEADER_BYTES),
            chunks: None,
            cutter: Cutter::new(CHUNK_BYTES + TAG_BYTES),
            out: Vec::with_capacity((CHUNKS_AT_ONCE + 1) * (CHUNK_BYTES + TAG_BYTES)),
        }
    }

    /// Takes header bytes from the start of `bytes`; returns the remaining bytes.
    fn header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], BuiltinError> {
        if self.chunks.is_some() {
            return Ok(bytes);
        }
        let (first, rest) = bytes.split_at(bytes.len().min(HEADER_BYTES - self.header.len()));
        self.header.extend_from_slice(first);
        if self.header.len() < HEADER_BYTES {
            return Ok(rest);
        }
        let (begin, more) = self.header.split_at(16);
        if begin != start() {
            let what = if begin.starts_with(MAGIC) {
                "it is of another version"
            } else {
                "encrypt did not write it"
            };
            return Err(BuiltinError::Corrupt {
                format: FORMAT,
                offset: 0,
                what: what.to_owned(),
            });
        }
        let mut salt = [0; SALT_BYTES];
        salt.copy_from_slice(&more[..SALT_BYTES]);
        let (chunks, check) = Chunks::derive(&self.key, &start(), &salt);
        if check != more[SALT_BYTES..] {
            return Err(BuiltinError::WrongKey);
        }
        self.chunks = Some(chunks);
        Ok(rest)
    }
}

impl Stream for Decrypt {
    fn push(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let bytes = self.header(bytes)?;
        let Some(chunks) = &mut self.chunks else {
            return Ok(());
        };
        let ready = &mut self.out;
        self.cutter.take(bytes, |chunk| {
            chunks.open(chunk, false, ready)?;
            write_many(ready, out)
        })
    }

    fn finish(mut self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        let Some(mut chunks) = self.chunks else {
            return Err(BuiltinError::CutShort(FORMAT));
        };
        chunks.open(&self.cutter.held, true, &mut self.out)?;
        out.write_all(&self.out).map_err(BuiltinError::Write)
    }
}
