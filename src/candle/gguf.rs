//! GGUF files with tensors in any format of [`Format::blocks`].
//!
//! candle's `gguf_file::Content::read` refuses a file that has a tensor in a format that candle does not have. [`GgufFile`] reads such a file, too, and gives
//! tensors as [`QWeights`].
//!
//! ```no_run
//! use candle::Device;
//! use candle_tilegemm::{gguf::GgufFile, nn::QLinear};
//!
//! let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
//! let content = GgufFile::read(&mut file)?;
//! let weights = content.tensors.read(&mut file, "blk.0.ffn_down.weight", &Device::Cpu)?;
//! let layer = QLinear::from_blocks(weights, None)?;
//! # Ok::<(), candle::Error>(())
//! ```

use super::blocks::format_of;
use super::qweights::{QWeights, Stored};
use crate::problem::Format;
use ::candle::quantized::ggml_file::qtensor_from_ggml;
use ::candle::quantized::gguf_file::{Content, TensorInfo};
use ::candle::shape::Dim;
use ::candle::{bail, Device, Result, Shape};
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

/// The formats that candle does not have, with ggml's numbers.
const TYPES: [(u32, Format); 3] = [(20, Format::IQ4_NL), (23, Format::IQ4_XS), (39, Format::MXFP4)];
/// Values in values.
const MOST_DEPTH: usize = 64;

/// The header of a GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    /// What candle reads, without the tensors in formats that candle does not have.
    pub content: Content,
    /// The places of all tensors.
    pub tensors: Tensors,
}

/// The places of a file's tensors.
#[derive(Debug)]
pub struct Tensors {
    places: HashMap<String, Place>,
    data_offset: u64,
}

/// candle's place, whose type counts where `format` is `None`.
#[derive(Debug)]
struct Place {
    info: TensorInfo,
    format: Option<Format>,
}

impl GgufFile {
    /// Reads the header of a file that starts where the reader is.
    ///
    /// # Errors
    /// Those of candle's `Content::read`: a tensor in a format that neither candle nor this crate has is one.
    pub fn read<R: Read + Seek>(reader: &mut R) -> Result<Self> {
        let start = reader.stream_position()?;
        let types = Header::new(reader)?.types()?;
        reader.seek(SeekFrom::Start(start))?;
        // To candle these tensors are in f32, whose number is 0.
        let hidden = types.iter().map(|(_, at, _)| *at).collect();
        let mut content = Content::read(&mut Hiding { reader: BufReader::new(reader), hidden, at: start })?;
        let mut tensors = Tensors::from(&content);
        for (name, _, format) in types {
            if let (Some(place), Some(_)) = (tensors.places.get_mut(&name), content.tensor_infos.remove(&name)) {
                place.format = Some(format);
            }
        }
        Ok(Self { content, tensors })
    }
}

impl Tensors {
    /// The shape of a tensor; `None`: the file has no such tensor.
    pub fn shape(&self, name: &str) -> Option<&Shape> {
        self.places.get(name).map(|place| &place.info.shape)
    }

    /// The numbers of a row that are one block of a tensor, of which a part of the columns is a multiple; `None`: the file has no such tensor.
    pub fn block(&self, name: &str) -> Option<usize> {
        self.places.get(name).map(|place| place.block()[0])
    }

    /// The names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// A tensor that the file does not have, or has a part of, and a device without room.
    pub fn read<R: Read + Seek>(&self, reader: &mut R, name: &str, device: &Device) -> Result<QWeights> {
        let all = 0..self.shape(name).and_then(|shape| shape.dims().first().copied()).unwrap_or(0);
        self.read_part(reader, name, 0, all, device)
    }

    /// Reads a range of a tensor's dimension, and no other bytes of the file: `D::Minus2` are the rows of a matrix, and those of every expert. `D::Minus1` are the
    /// columns, of which a part is whole blocks.
    ///
    /// ```no_run
    /// use candle::{Device, D};
    /// use candle_tilegemm::gguf::GgufFile;
    ///
    /// let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
    /// let tensors = GgufFile::read(&mut file)?.tensors;
    /// let rows = tensors.read_part(&mut file, "blk.0.ffn_up.weight", D::Minus2, 0..1024, &Device::Cpu)?;
    /// let columns = tensors.read_part(&mut file, "blk.0.ffn_down.weight", D::Minus1, 0..1024, &Device::Cpu)?;
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`read`](Self::read); a range that the dimension does not have, or that cuts a block.
    pub fn read_part<R: Read + Seek>(
        &self,
        reader: &mut R,
        name: &str,
        dim: impl Dim,
        part: Range<usize>,
        device: &Device,
    ) -> Result<QWeights> {
        let Some(place) = self.places.get(name) else {
            bail!("GGUF: the tensor {name} is missing");
        };
        let dim = dim.to_index(&place.info.shape, "GGUF")?;
        let runs = place.runs(name, dim, &part)?;
        let begin = self.data_offset.saturating_add(place.info.offset);
        let remaining = reader.seek(SeekFrom::End(0))?.saturating_sub(begin);
        if runs.of_tensor as u64 > remaining {
            bail!(
                "GGUF: the tensor {name} has the shape {:?} in {}; the file has {remaining} bytes of it",
                place.info.shape,
                place.kind()
            );
        }
        let bytes = runs.read(reader, begin)?;
        let mut shape = place.info.shape.dims().to_vec();
        shape[dim] = part.len();
        match place.format {
            None => Ok(qtensor_from_ggml(place.info.ggml_dtype, &bytes, shape, device)?.into()),
            Some(format) => Stored::Bytes(format).weights(bytes, shape.into(), device),
        }
    }
}

impl Place {
    fn kind(&self) -> String {
        let theirs = self.info.ggml_dtype;
        self.format.or(format_of(theirs)).map_or(format!("{theirs:?}"), |format| format.to_string())
    }

    /// The numbers of a block, and its bytes.
    fn block(&self) -> [usize; 2] {
        self.format.map_or(Stored::Candle(self.info.ggml_dtype), Stored::Bytes).block()
    }

    /// Where a range of a dimension lies.
    fn runs(&self, name: &str, dim: usize, part: &Range<usize>) -> Result<Runs> {
        let dims = self.info.shape.dims();
        let [elements, bytes] = self.block();
        if part.start > part.end || part.end > dims[dim] {
            bail!("GGUF: {part:?} of dimension {dim} of the tensor {name}, which has the shape {dims:?}");
        }
        let last = dims.len() - 1;
        if !dims[last].is_multiple_of(elements) {
            bail!(
                "GGUF: the tensor {name} has the shape {dims:?} in {}; expected rows of whole blocks of {elements} numbers",
                self.kind()
            );
        }
        if dim == last && !(part.start.is_multiple_of(elements) && part.end.is_multiple_of(elements)) {
            bail!(
                "GGUF: columns {part:?} of the tensor {name} cut a block, of {elements} numbers in {}; expected multiples of {elements}",
                self.kind()
            );
        }
        // In blocks.
        let mut sizes = dims.to_vec();
        sizes[last] /= elements;
        let part = if dim == last { part.start / elements..part.end / elements } else { part.clone() };
        if sizes.iter().try_fold(bytes, |all, size| all.checked_mul((*size).max(1))).is_none() {
            bail!("GGUF: the tensor {name} has the shape {dims:?}, more than memory has addresses for");
        }
        let count = sizes[..dim].iter().product::<usize>();
        let unit = bytes * sizes[dim + 1..].iter().product::<usize>();
        let stride = unit * sizes[dim];
        Ok(Runs { count, stride, skipped: unit * part.start, bytes: unit * part.len(), of_tensor: count * stride })
    }
}

/// Some bytes of every stride, after others that are skipped.
struct Runs {
    count: usize,
    stride: usize,
    skipped: usize,
    bytes: usize,
    of_tensor: usize,
}

impl Runs {
    /// The runs one after another. A tensor begins at `begin`.
    fn read<R: Read + Seek>(&self, reader: &mut R, begin: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.count * self.bytes];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        reader.seek(SeekFrom::Start(begin + self.skipped as u64))?;
        for (i, run) in bytes.chunks_mut(self.bytes).enumerate() {
            if i > 0 {
                // Relative: a reader with a buffer keeps it.
                reader.seek_relative((self.stride - self.bytes) as i64)?;
            }
            reader.read_exact(run)?;
        }
        Ok(bytes)
    }
}

impl From<&Content> for Tensors {
    fn from(content: &Content) -> Self {
        let place = |(name, info): (&String, &TensorInfo)| {
            let info = TensorInfo { ggml_dtype: info.ggml_dtype, shape: info.shape.clone(), offset: info.offset };
            (name.clone(), Place { info, format: None })
        };
        Self { places: content.tensor_infos.iter().map(place).collect(), data_offset: content.tensor_data_offset }
    }
}

/// A walk through a header.
struct Header<R> {
    reader: R,
    /// Bytes from the start of the file.
    at: u64,
    /// Bytes of a number that counts.
    width: u64,
}

impl<'a, R: Read + Seek> Header<BufReader<&'a mut R>> {
    fn new(reader: &'a mut R) -> Result<Self> {
        let at = reader.stream_position()?;
        Ok(Self { reader: BufReader::new(reader), at, width: 8 })
    }
}

impl<R: Read> Header<R> {
    /// The tensors in [`TYPES`]: their names, the places of the numbers of their types, and their formats.
    fn types(mut self) -> Result<Vec<(String, u64, Format)>> {
        self.skip(4)?; // candle looks at the magic number
        self.width = if self.number(4)? == 1 { 4 } else { 8 };
        let (tensors, values) = (self.number(self.width)?, self.number(self.width)?);
        for _ in 0..values {
            self.text()?;
            let kind = self.number(4)?;
            self.skip_value(kind, 0)?;
        }
        let mut types = vec![];
        for _ in 0..tensors {
            let name = self.text()?;
            let dims = self.number(4)?;
            self.skip(dims * self.width)?;
            let (at, number) = (self.at, self.number(4)?);
            self.skip(8)?;
            if let Some((_, format)) = TYPES.into_iter().find(|(theirs, _)| u64::from(*theirs) == number) {
                types.push((name, at, format));
            }
        }
        Ok(types)
    }

    fn number(&mut self, width: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.reader.read_exact(&mut bytes[..width as usize])?;
        self.at += width;
        Ok(u64::from_le_bytes(bytes))
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.at += io::copy(&mut self.reader.by_ref().take(bytes), &mut io::sink())?;
        Ok(())
    }

    /// As candle reads it.
    fn text(&mut self) -> Result<String> {
        let (length, mut bytes) = (self.number(self.width)?, vec![]);
        self.at += self.reader.by_ref().take(length).read_to_end(&mut bytes)? as u64;
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string())
    }

    fn skip_value(&mut self, kind: u64, depth: usize) -> Result<()> {
        let width = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => self.number(self.width)?,
            9 if depth < MOST_DEPTH => {
                let (kind, count) = (self.number(4)?, self.number(self.width)?);
                for _ in 0..count {
                    self.skip_value(kind, depth + 1)?;
                }
                0
            }
            _ => bail!("GGUF: a value of type {kind}, {depth} values deep"),
        };
        self.skip(width)
    }
}

/// A reader that gives zeros in the place of some numbers of 4 bytes, whose places rise.
struct Hiding<R> {
    reader: R,
    hidden: Vec<u64>,
    at: u64,
}

impl<R: Read> Read for Hiding<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(to)?;
        let (begin, end) = (self.at, self.at + count as u64);
        let first = self.hidden.partition_point(|at| at + 4 <= begin);
        for at in self.hidden[first..].iter().take_while(|at| **at < end) {
            let [from, until] = [*at, at + 4].map(|at| (at.clamp(begin, end) - begin) as usize);
            to[from..until].fill(0);
        }
        self.at = end;
        Ok(count)
    }
}

impl<R: Seek> Seek for Hiding<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.reader.seek(to)?;
        Ok(self.at)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.at)
    }
}
