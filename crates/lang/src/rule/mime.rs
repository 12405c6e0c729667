//! Types of files: determined by the extensions of their names, or by their first bytes.

const TYPES: [(&str, &str); 44] = [
    ("avi", "video/x-msvideo"),
    ("bz2", "application/x-bzip2"),
    ("c", "text/x-c"),
    ("csv", "text/csv"),
    ("dat", "application/octet-stream"),
    ("fasta", "text/x-fasta"),
    ("fastq", "text/x-fastq"),
    ("fits", "application/fits"),
    ("fts", "application/fits"),
    ("gif", "image/gif"),
    ("grb", "application/x-grib"),
    ("grib", "application/x-grib"),
    ("gz", "application/gzip"),
    ("h5", "application/x-hdf5"),
    ("hdf", "application/x-hdf"),
    ("hdf5", "application/x-hdf5"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("json", "application/json"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("mp4", "video/mp4"),
    ("nc", "application/netcdf"),
    ("nc4", "application/netcdf"),
    ("nii", "application/x-nifti"),
    ("npy", "application/x-npy"),
    ("npz", "application/x-npz"),
    ("parquet", "application/vnd.apache.parquet"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("ps", "application/postscript"),
    ("py", "text/x-python"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("tsv", "text/tab-separated-values"),
    ("txt", "text/plain"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// Returns the type of a file of this name; `application/octet-stream` if it is not known.
#[must_use]
pub fn of_name(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    let known = TYPES
        .iter()
        .find(|(known, _)| end.eq_ignore_ascii_case(known));
    known.map_or("application/octet-stream", |(_, kind)| kind)
}

/// Returns whether a type, or a pattern such as `image/*`, matches a known type.
pub(super) fn is_known(wanted: &regex::Regex) -> bool {
    TYPES.iter().any(|(_, kind)| wanted.is_match(kind))
}

/// Number of bytes from which a file's type is determined.
pub const HEAD_BYTES: usize = 512;

/// First bytes of files, and their offset.
const HEADS: [(usize, &[u8], &str); 31] = [
    (0, b"CDF\x01", "application/netcdf"),
    (0, b"CDF\x02", "application/netcdf"),
    (0, b"CDF\x05", "application/netcdf"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (0, b"\x0e\x03\x13\x01", "application/x-hdf"),
    (0, b"SIMPLE  =", "application/fits"),
    (0, b"GRIB", "application/x-grib"),
    (0, b"\x93NUMPY", "application/x-npy"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"II+\x00", "image/tiff"),
    (0, b"MM\x00+", "image/tiff"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"AVI ", "video/x-msvideo"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"\xfd7zXZ\x00", "application/x-xz"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"PK\x05\x06", "application/zip"),
    (257, b"ustar", "application/x-tar"),
    (344, b"n+1\x00", "application/x-nifti"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"%!PS", "application/postscript"),
    (0, b"<?xml", "application/xml"),
];

/// Returns the type of a file that begins with `head`, which contains all bytes that are examined. The type is text if the bytes could be
/// text, and `application/x-empty` if there are none.
#[must_use]
pub fn of_content(head: &[u8]) -> &'static str {
    let begins = |(at, with, _): &&(usize, &[u8], &str)| {
        head.get(*at..).is_some_and(|rest| rest.starts_with(with))
    };
    if let Some((_, _, kind)) = HEADS.iter().find(begins) {
        return kind;
    }
    if head.is_empty() {
        return "application/x-empty";
    }
    let plain = |byte: &u8| *byte >= 0x20 || matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c);
    let text = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The last character may be cut.
        Err(error) => error.error_len().is_none() && error.valid_up_to() > 0,
    };
    match text && head.iter().all(plain) {
        true => "text/plain",
        false => "application/octet-stream",
    }
}

/// Returns whether a type, or a pattern, matches a type that is determined by first bytes.
pub(super) fn is_known_content(wanted: &regex::Regex) -> bool {
    let others = [
        "text/plain",
        "application/octet-stream",
        "application/x-empty",
    ];
    let heads = HEADS.iter().map(|(_, _, kind)| *kind);
    heads.chain(others).any(|kind| wanted.is_match(kind))
}
