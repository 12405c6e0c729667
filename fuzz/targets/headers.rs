//! Headers of scientific files: read or refused, and what they say of their bytes lies in the file.
#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use tidemill_format::time::Units;
use tidemill_format::{Folder, Header, Range, Store, pieces, zarr, zip::Zip};

/// A Zarr whose metadata is all in one file, and whose chunks have some bytes.
struct One<'a>(&'a str, &'a [u8]);

impl Folder for One<'_> {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        let metadata = [".zmetadata", ".zarray", "zarr.json", ".zgroup"].contains(&path);
        Ok(if path == self.0 { Some(self.1.len() as u64) } else { (!metadata).then_some(99) })
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if path != self.0 {
            into.fill(7);
            return Ok(());
        }
        let from = self.1.get(offset as usize..).and_then(|from| from.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

fn look(header: &Header, store: Store<'_>, size: u64) {
    for variable in header.variables.iter().take(100) {
        let all: Vec<Range> = variable.shape().into_iter().map(Range::all).collect();
        let Ok(found) = pieces(variable, &all, store, 1 << 16) else { continue };
        for piece in found.take(64).map_while(Result::ok) {
            assert!(piece.within.iter().zip(&piece.shape).all(|(range, size)| range.end <= *size));
            assert!(piece.span.is_none_or(|span| span.offset + span.size <= size));
        }
        let _ = variable.meaning();
        if let Ok(Some(units)) = Units::of(variable) {
            let _ = (units.date(1e5), units.span("1990-01", "1999-12"));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    // A first byte that no format has says that something else is meant.
    let file = bytes.to_vec();
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    if let Some(name) = ["zarr.json", ".zmetadata", ".zarray"].get(usize::from(*kind)) {
        let folder = One(name, bytes);
        if let Ok(header) = zarr::read(&folder) {
            look(&header, Store::Folder(&folder), 99.max(bytes.len() as u64));
        }
        return;
    }
    if *kind == 3 {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(units) = Units::parse(&text, "standard") {
            let _ = (units.date(1e5), units.span(&text, &text));
        }
        return;
    }
    if let Ok(header) = tidemill_format::read(&file) {
        match Zip::open(&file) {
            Ok(zip) if matches!(header.format, tidemill_format::Format::Zarr(_)) => {
                look(&header, Store::Folder(&zip), file.len() as u64);
            }
            _ => look(&header, Store::File(&file), file.len() as u64),
        }
    }
});
