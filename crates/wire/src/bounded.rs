//! How much a request to the namespace may be, seen from its bytes before anything is made of them.
//!
//! Decoded, an operation weighs some hundred bytes, and two bytes are one: without this, a message that is allowed by
//! its length would take a hundred times that. All other messages weigh about as much decoded as encoded, or come from
//! parts of the array only.

use crate::v1::NameRequest;
use prost::Message;
use std::any::TypeId;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Operations in one request.
pub const OPS_MAX: usize = 10_000;

/// Longest encoded [`Credentials`](crate::v1::Credentials): as many groups as Linux lets anybody have, and some.
const CREDENTIALS_BYTES_MAX: usize = 512 << 10;

/// Fields of a request beside its operations.
const OTHER_FIELDS_MAX: usize = 16;

const CREDENTIALS: u64 = 1;
const OPS: u64 = 2;

/// Why a request is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Too many operations.
    #[error("a request has more than {OPS_MAX} operations: send several")]
    Operations,
    /// Too many groups, or nonsense in their place.
    #[error("the credentials of a request are longer than those of anybody")]
    Credentials,
    /// No message at all.
    #[error("a message is no request")]
    Nonsense,
}

/// Looks over the encoding of a [`NameRequest`].
///
/// # Errors
/// If it is too much, or none.
pub fn check(mut bytes: &[u8]) -> Result<(), Excess> {
    let (mut ops, mut others) = (0, 0);
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let length = match key & 7 {
            0 => varint(&mut bytes).map(|_| 0)?,
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).map_err(|_| Excess::Nonsense)?,
            5 => 4,
            _ => return Err(Excess::Nonsense),
        };
        bytes = bytes.get(length..).ok_or(Excess::Nonsense)?;
        match key >> 3 {
            OPS => ops += 1,
            CREDENTIALS if length > CREDENTIALS_BYTES_MAX => return Err(Excess::Credentials),
            _ => others += 1,
        }
        if ops > OPS_MAX {
            return Err(Excess::Operations);
        }
        if others > OTHER_FIELDS_MAX {
            return Err(Excess::Nonsense);
        }
    }
    Ok(())
}

/// Takes a number of the encoding: seven bits a byte, the lowest first, ten bytes at most.
fn varint(bytes: &mut &[u8]) -> Result<u64, Excess> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (&first, rest) = bytes.split_first().ok_or(Excess::Nonsense)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift).unwrap_or(0);
        if first < 0x80 {
            return Ok(value);
        }
    }
    Err(Excess::Nonsense)
}

/// The protobuf codec of all services, which looks over a [`NameRequest`] before it decodes it.
#[derive(Clone, Debug)]
pub struct Bounded<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Bounded<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Bounded<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

/// See [`Bounded`].
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + 'static> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        use prost::bytes::Buf;
        if TypeId::of::<U>() == TypeId::of::<NameRequest>() {
            // A message comes in one piece.
            check(buffer.chunk()).map_err(|excess| Status::invalid_argument(excess.to_string()))?;
        }
        self.0.decode(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{Credentials, NameOp, name_op::Op};
    use proptest::prelude::*;

    fn request(ops: usize, groups: usize) -> Vec<u8> {
        let op = NameOp {
            op: Some(Op::StatFs(crate::v1::StatFs {})),
        };
        let request = NameRequest {
            credentials: Some(Credentials {
                groups: vec![u32::MAX; groups],
                ..Credentials::default()
            }),
            ops: vec![op; ops],
            session: u64::MAX,
            durable: true,
        };
        request.encode_to_vec()
    }

    #[test]
    fn as_many_operations_and_groups_as_there_may_be_pass() {
        assert_eq!(check(&request(OPS_MAX, 65_536)), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn more_are_refused_by_their_bytes_alone() {
        assert_eq!(check(&request(OPS_MAX + 1, 1)), Err(Excess::Operations));
        assert_eq!(check(&request(1, 200_000)), Err(Excess::Credentials));
        // The message that took a hundred times its length: empty operations of two bytes each.
        assert_eq!(check(&b"\x12\x00".repeat(1 << 20)), Err(Excess::Operations));
        // Credentials again and again are put together by the decoder.
        assert_eq!(check(&b"\x0a\x00".repeat(1 << 20)), Err(Excess::Nonsense));
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            &b"\xff"[..],
            b"\x12\xff\xff\xff\xff\x0f",
            b"\x13\x00",
            b"\x12\x05ab",
        ] {
            assert_eq!(check(bytes), Err(Excess::Nonsense), "{bytes:?}");
        }
        assert_eq!(check(&[0xff; 30]), Err(Excess::Nonsense));
    }

    proptest! {
        /// Nothing that the decoder takes is called nonsense, unless it is too much.
        #[test]
        fn what_decodes_passes(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if NameRequest::decode(bytes.as_slice()).is_ok() {
                prop_assert_ne!(check(&bytes), Err(Excess::Operations));
            } else {
                let _ = check(&bytes);
            }
        }
    }
}
