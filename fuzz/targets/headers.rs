//! Headers of scientific files are parsed or refused, and their ranges are within the file.
#![no_main]

use std::io;

use libfuzzer_sys::fuzz_target;
use tidemill_format::time::Units;
use tidemill_format::csv::Csv;
use tidemill_format::{Directory, Header, IndexRange, VariableSource, columns, pieces, zarr, zip::Zip};

/// Zarr with all metadata in one file, and with chunks of some bytes.
struct One<'a>(&'a str, &'a [u8]);

impl Directory for One<'_> {
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

/// Directory of a few files. In the input, each file follows the number of its name.
struct Many<'a>(Vec<(&'static str, &'a [u8])>);

const NAMES: [&str; 12] = [
    "zarr.json", ".zgroup", ".zattrs", ".zmetadata", ".zarray", "a/zarr.json", "a/.zarray", "a/.zattrs", "a/.zgroup", "a/b/zarr.json",
    "a/c/0/0", "a/0.0",
];

impl<'a> Many<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let files = bytes.split(|&byte| byte == 0xff).filter_map(|file| file.split_first());
        Self(files.map(|(name, file)| (NAMES[usize::from(*name) % NAMES.len()], file)).take(NAMES.len()).collect())
    }

    fn file(&self, path: &str) -> Option<&'a [u8]> {
        // For any metadata, the reader never asks for a path above the directory.
        assert!(!path.starts_with('/') && !path.split('/').any(|name| name == ".."), "{path}");
        self.0.iter().find(|(name, _)| *name == path).map(|(_, file)| *file)
    }
}

impl Directory for Many<'_> {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(self.file(path).map(|file| file.len() as u64))
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = self.file(path).and_then(|file| file.get(offset as usize..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let below = |name: &&'static str| match path {
            "" => Some(*name),
            _ => name.strip_prefix(path)?.strip_prefix('/'),
        };
        let names = self.0.iter().filter_map(|(name, _)| below(name)?.split('/').next());
        Ok(names.map(str::to_owned).collect())
    }
}

/// Reads the first line as a user's description of a text file, and the rest as that file.
fn text(bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let (spec, file) = bytes.split_at(end);
    let spec = String::from_utf8_lossy(spec);
    let file = file.get(1..).unwrap_or_default().to_vec();
    if let Ok(csv) = Csv::read(&spec, &file) {
        assert!(csv.begin <= file.len() as u64);
        for line in file[csv.begin as usize..].split(|&byte| byte == b'\n') {
            if csv.passes_over(line) {
                continue;
            }
            let all = csv.columns(line);
            if let (Ok(all), Ok(one)) = (&all, csv.column(line)) {
                assert_eq!(all.get(csv.index).is_some(), one.is_some());
                assert!(one.is_none_or(|one| one.len() <= line.len() && all[csv.index] == one));
            }
        }
    }
    if let Ok(header) = columns::read(&spec, &file) {
        look(&header, VariableSource::File(&file), file.len() as u64);
    }
}

fn look(header: &Header, store: VariableSource<'_>, size: u64) {
    for variable in header.variables.iter().take(100) {
        let all: Vec<IndexRange> = variable.shape().into_iter().map(IndexRange::all).collect();
        let Ok(found) = pieces(variable, &all, store, 1 << 16) else { continue };
        for piece in found.take(64).map_while(Result::ok) {
            assert!(piece.within.iter().zip(&piece.shape).all(|(range, size)| range.end <= *size));
            assert!(piece.span.is_none_or(|span| span.offset + span.size <= size));
        }
        let _ = variable.meaning(header.format);
        if let Ok(Some(units)) = Units::of(variable) {
            let _ = (units.date(1e5), units.span("1990-01", "1999-12"));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    // A first byte that no format uses selects another kind of input.
    let file = bytes.to_vec();
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    if let Some(name) = ["zarr.json", ".zmetadata", ".zarray"].get(usize::from(*kind)) {
        let directory = One(name, bytes);
        if let Ok(header) = zarr::read(&directory) {
            look(&header, VariableSource::Directory(&directory), 99.max(bytes.len() as u64));
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
    if *kind == 4 {
        return text(bytes);
    }
    if *kind == 5 {
        let directory = Many::of(bytes);
        if let Ok(header) = zarr::read(&directory) {
            look(&header, VariableSource::Directory(&directory), bytes.len() as u64);
        }
        return;
    }
    if let Ok(header) = tidemill_format::read(&file) {
        match Zip::open(&file) {
            Ok(zip) if matches!(header.format, tidemill_format::Format::Zarr(_)) => {
                look(&header, VariableSource::Directory(&zip), file.len() as u64);
            }
            _ => look(&header, VariableSource::File(&file), file.len() as u64),
        }
    }
});
