//! The output of cuobjdump.

use super::loops;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

/// An instruction at an address.
#[derive(Debug)]
pub struct Instruction {
    pub address: u32,
    /// The name with modifiers.
    pub name: String,
    /// Where a branch goes, or where a barrier leads.
    pub target: Option<u32>,
    /// The barrier of BSSY and BSYNC.
    pub barrier: String,
    /// Whether the instruction depends on a predicate.
    is_conditional: bool,
}

impl Instruction {
    /// Reads a line such as `/*0120*/  @!P0 BRA P5, 0x1c0 ;  /* ... */`.
    fn read(line: &str) -> Option<Self> {
        let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
        let address = u32::from_str_radix(address, 16).ok()?;
        let words: Vec<&str> = rest.split(';').next()?.split_whitespace().collect();
        let has_guard = words.first()?.starts_with('@');
        let (name, operands) = words[usize::from(has_guard)..].split_first()?;
        let of_predicate = |word: &str| ["P", "!P", "UP", "!UP"].iter().any(|start| word.starts_with(start));
        let target = operands.last().and_then(|word| u32::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let jumps = ["BRA", "CALL", "BSSY"].iter().any(|jump| matches(name, jump));
        Some(Self {
            address,
            name: name.to_string(),
            target: target.filter(|_| jumps),
            barrier: operands.first().map(|word| word.trim_end_matches(',').into()).unwrap_or_default(),
            is_conditional: has_guard || operands.iter().any(|word| of_predicate(word)),
        })
    }

    /// A call is a branch, too: compilers also leave loops by it. Control goes on behind it where the function returns.
    pub fn is_branch(&self) -> bool {
        matches(&self.name, "BRA") || matches(&self.name, "CALL")
    }

    /// Whether control may go on with the next instruction.
    pub fn falls_through(&self) -> bool {
        let leaves = ["BRA", "BRX", "BSYNC", "EXIT", "RET", "KILL"].iter().any(|name| matches(&self.name, name));
        // Branches that depend on the threads of the warp: on any of them, on whether they have diverged or are together.
        let of_the_warp = ["ANY", "DIV", "CONV"].iter().any(|modifier| self.name.split('.').any(|of| of == *modifier));
        !leaves || self.is_conditional || of_the_warp
    }

    pub fn ends_block(&self) -> bool {
        self.is_branch() || !self.falls_through()
    }
}

/// A device function.
#[derive(Debug, Default)]
pub struct Function {
    /// The mangled name.
    pub symbol: String,
    /// The name of the function alone.
    pub name: String,
    /// The source file's name, which is the family's.
    pub family: String,
    /// sm90a
    pub arch: String,
    pub registers: u32,
    code: Vec<Instruction>,
}

impl Function {
    fn new(symbol: &str, arch: &str) -> Self {
        let (family, name) = parts(symbol).unwrap_or_default();
        Self { symbol: symbol.into(), name, family, arch: arch.into(), ..Self::default() }
    }

    /// The row of the table, where the name has it, else the template arguments as they are mangled.
    pub fn title(&self) -> String {
        let row = self.symbol.match_indices("_row").next().map(|(end, _)| {
            let digits = |text: &str| text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
            let name = self.symbol[..end].rsplit("NS_").next().unwrap_or_default();
            name[digits(name)..].to_string()
        });
        let arguments = self.symbol.split(&format!("{}{}I", self.name.len(), self.name)).nth(1).unwrap_or_default();
        let end = arguments.char_indices().nth(120).map_or(arguments.len(), |(at, _)| at);
        format!("{}<{}>", self.name, row.unwrap_or_else(|| arguments[..end].into()))
    }

    /// Whether there is an instruction that [`matches()`].
    pub fn has(&self, need: &str) -> bool {
        self.code.iter().any(|instruction| matches(&instruction.name, need))
    }

    /// A load from global memory that a kernel makes before it waits for the kernel before (`griddepcontrol.wait`).
    pub fn load_before_the_wait(&self) -> Option<&str> {
        let waits = |name: &str| name == "ACQBULK";
        let is_load = |name: &str| ["LDG", "LDGSTS", "LD", "UTMALDG", "UBLKCP"].iter().any(|load| matches(name, load));
        if !self.has("ACQBULK") {
            return None;
        }
        loops::reached_before(&self.code, &waits, &is_load)
    }

    /// The instructions of each loop that has instructions that match `main`, and no loop inside that has them.
    pub fn innermost_loops(&self, main: &str) -> Vec<Vec<&str>> {
        loops::innermost(&self.code, &|name| !main.is_empty() && matches(name, main))
    }
}

/// Whether an instruction has the name of `need` and the modifiers of `need`, and perhaps more: `LDG.E.EF.128` matches `LDG.128`.
pub fn matches(instruction: &str, need: &str) -> bool {
    let mut need = need.split('.');
    let have: Vec<&str> = instruction.split('.').collect();
    need.next() == Some(have[0]) && need.all(|modifier| have[1..].contains(&modifier))
}

/// The source and the name in `_ZN8tilegemm45_GLOBAL__N__5a10723f_12_sm90_gemm_cu_d9f196e49sm90_gemmI...`. Between the two namespaces there may be others.
fn parts(symbol: &str) -> Option<(String, String)> {
    let (mut namespace, mut rest) = identifier(symbol.strip_prefix("_ZN8tilegemm")?)?;
    while !namespace.starts_with("_GLOBAL__N__") {
        (namespace, rest) = identifier(rest)?;
    }
    let (_, source) = namespace.strip_prefix("_GLOBAL__N__")?.split_once('_')?;
    let source = source.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('_');
    let family = source.split("_cu_").next()?;
    let (name, _) = identifier(rest)?;
    Some((family.into(), name.into()))
}

/// A mangled identifier, `9sm90_gemm...`, and what follows.
fn identifier(text: &str) -> Option<(&str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = text[..digits].parse().ok()?;
    text.get(digits..digits + length).map(|name| (name, &text[digits + length..]))
}

/// All functions of a library.
#[derive(Debug, Default)]
pub struct Listing {
    pub functions: Vec<Function>,
}

impl Listing {
    /// Reads the output of `cuobjdump -sass`.
    pub fn read_code(&mut self, text: impl Read) {
        let mut arch = String::new();
        for line in BufReader::new(text).lines() {
            let line = line.expect("cuobjdump writes text");
            let line = line.trim();
            if let Some(of) = line.strip_prefix("arch = ") {
                arch = of.replace('_', "");
            } else if let Some(symbol) = line.strip_prefix("Function : ") {
                self.functions.push(Function::new(symbol, &arch));
            } else if let Some((function, instruction)) = self.functions.last_mut().zip(Instruction::read(line)) {
                function.code.push(instruction);
            }
        }
    }

    /// Reads the output of `cuobjdump -res-usage`.
    pub fn read_resources(&mut self, text: impl Read) {
        let mut at: HashMap<(String, String), usize> = HashMap::new();
        for (index, function) in self.functions.iter().enumerate() {
            at.insert((function.symbol.clone(), function.arch.clone()), index);
        }
        let (mut arch, mut current) = (String::new(), None);
        for line in BufReader::new(text).lines() {
            let line = line.expect("cuobjdump writes text");
            let line = line.trim();
            if let Some(of) = line.strip_prefix("arch = ") {
                arch = of.replace('_', "");
            } else if let Some(symbol) = line.strip_prefix("Function ") {
                current = at.get(&(symbol.trim_end_matches(':').into(), arch.clone()));
            } else if let (Some(&index), Some(rest)) = (current, line.strip_prefix("REG:")) {
                let number = rest.split(' ').next().unwrap_or_default();
                self.functions[index].registers = number.parse().expect("a number of registers");
            }
        }
        for function in &self.functions {
            assert!(function.registers > 0, "cuobjdump tells no registers of {}", function.symbol);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOL: &str = "_ZN8tilegemm45_GLOBAL__N__5a10723f_12_sm90_gemm_cu_d9f196e49sm90_gemmINS_3abc_rowEEEvT_";

    /// Two loops in a third one; the first of them spills.
    const CODE: &str = "
        arch = sm_90a
                Function : _ZN8tilegemm45_GLOBAL__N__5a10723f_12_sm90_gemm_cu_d9f196e49sm90_gemmINS_3abc_rowEEEvT_
                .headerflags    @\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24 ;   /* 0x00 */
        /*0020*/                   STL [R1], R2 ;                   /* 0x00 */
        /*0030*/              @!P0 BRA 0x10 ;                       /* 0x00 */
        /*0040*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24 ;   /* 0x00 */
        /*0050*/               @P1 BRA 0x40 ;                       /* 0x00 */
        /*0060*/                   LDG.E.128 R4, desc[UR4][R2.64] ; /* 0x00 */
        /*0070*/              @!P2 BRA.U 0x0 ;                      /* 0x00 */
        /*0080*/                   BRA 0x80 ;                       /* 0x00 */
    ";
    const RESOURCES: &str = "
        arch = sm_90a
        Resource usage:
         Common:
          GLOBAL:0
         Function _ZN8tilegemm45_GLOBAL__N__5a10723f_12_sm90_gemm_cu_d9f196e49sm90_gemmINS_3abc_rowEEEvT_:
          REG:168 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:1000 TEXTURE:0 SURFACE:0 SAMPLER:0
    ";

    #[test]
    fn listings_are_understood() {
        let mut listing = Listing::default();
        listing.read_code(CODE.as_bytes());
        listing.read_resources(RESOURCES.as_bytes());
        let [function] = &listing.functions[..] else { panic!("{} functions", listing.functions.len()) };
        assert_eq!(function.symbol, SYMBOL);
        assert_eq!([&function.family, &function.name, &function.arch], ["sm90_gemm", "sm90_gemm", "sm90a"]);
        let nested = parts(
            "_ZN8tilegemm4gguf50_GLOBAL__N__406a0872_17_sm90_gguf_gemm_cu_10db77d417gguf_prepare_bf16I6__halfEEv12tg_gemm_args",
        );
        assert_eq!(nested, Some(("sm90_gguf_gemm".into(), "gguf_prepare_bf16".into())));
        assert_eq!((function.registers, function.code.len()), (168, 9));
        assert!(function.has("LDG.128") && function.has("HGMMA") && !function.has("LDG.64") && !function.has("LD"));
        let loops = function.innermost_loops("HGMMA");
        assert_eq!(loops.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2]);
        assert!(loops[0].contains(&"STL") && !loops[1].contains(&"STL"));
        assert_eq!(function.innermost_loops("LDG").len(), 1);
        assert!(function.innermost_loops("HMMA").is_empty());
        assert_eq!(function.load_before_the_wait(), None, "no kernel waits here");
    }

    #[test]
    fn loops_go_through_meetings_tables_and_calls() {
        let mut listing = Listing::default();
        let code = format!(
            "Function : {SYMBOL}
            /*0000*/ MOV R2, R1 ;
            /*0010*/ BSSY B0, 0x60 ;
            /*0020*/ @P0 BRA 0x50 ;
            /*0030*/ BRX R2 -0x40 ;
            /*0040*/ BRA 0x50 ;
            /*0050*/ BSYNC B0 ;
            /*0060*/ HMMA.16816.F32.BF16 R36, R36, R10, RZ ;
            /*0070*/ BRA.CONV ~URZ, 0x90 ;
            /*0080*/ CALL.REL.NOINC 0x100 ;
            /*0090*/ @P1 CALL.REL.NOINC 0xb0 ;
            /*00a0*/ BRA 0x10 ;
            /*00b0*/ BRX R3 -0xc0 ;
            /*00c0*/ STG.E [R2], R3 ;
            /*00d0*/ EXIT ;
            /*0100*/ BSSY B0, 0x120 ;
            /*0110*/ BSYNC B0 ;
            /*0120*/ RET.REL.NODEC R48 0x0 ;"
        );
        listing.read_code(code.as_bytes());
        let loops = listing.functions[0].innermost_loops("HMMA");
        // From the first BSSY to the branch back, without the function that is called and what follows the loop.
        assert_eq!(loops.iter().map(Vec::len).collect::<Vec<_>>(), [10], "{loops:?}");
    }

    #[test]
    fn loads_before_the_wait_are_found() {
        let listing = |first: &str, second: &str| {
            let mut listing = Listing::default();
            let code = format!(
                "Function : {SYMBOL}
                /*0000*/ @P0 BRA 0x30 ;
                /*0010*/ {first} ;
                /*0020*/ {second} ;
                /*0030*/ EXIT ;"
            );
            listing.read_code(code.as_bytes());
            listing.functions[0].load_before_the_wait().map(str::to_string)
        };
        let load = "LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64]";
        assert_eq!(listing("ACQBULK", load), None);
        assert_eq!(listing(load, "ACQBULK").as_deref(), Some("LDG.E.NA.128.CONSTANT"));
        assert_eq!(listing("CCTL.E.PF2 [R2]", "ACQBULK"), None);
    }

    #[test]
    fn a_function_has_none_of_the_barriers_that_its_caller_is_done_with() {
        let mut listing = Listing::default();
        let code = format!(
            "Function : {SYMBOL}
            /*0000*/ BSSY B1, 0x40 ;
            /*0010*/ @P0 BRA 0x30 ;
            /*0020*/ MOV R2, R1 ;
            /*0030*/ BSYNC B1 ;
            /*0040*/ @P1 EXIT ;
            /*0050*/ ACQBULK ;
            /*0060*/ CALL.REL.NOINC 0x100 ;
            /*0070*/ BRA 0x0 ;
            /*0100*/ @P2 BRA 0x130 ;
            /*0110*/ BSSY B1, 0x140 ;
            /*0120*/ MOV R2, R1 ;
            /*0130*/ BSYNC B1 ;
            /*0140*/ LDG.E R4, desc[UR4][R2.64] ;
            /*0150*/ RET.REL.NODEC R48 0x0 ;"
        );
        listing.read_code(code.as_bytes());
        assert_eq!(listing.functions[0].load_before_the_wait(), None);
    }
}
