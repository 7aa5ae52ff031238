# Takes what a host compiler does not know out of a copy of csrc; the headers beside this file take the place of those of the same names.
import os, sys
root = sys.argv[1]
for gone in ['common/ptx.hpp', 'common/wgmma.hpp', 'common/launch.hpp', 'common/tensor_map.hpp', 'narrow/wgmma.hpp']:
    os.remove(f'{root}/{gone}')
def patch(path, begin, end, to):
    text = open(f'{root}/{path}').read()
    at = text.index(begin)
    stop = text.index(end, at) + len(end)
    open(f'{root}/{path}', 'w').write(text[:at] + to + text[stop:])
family = 'sm90_narrow_grouped_gemm'
patch(f'{family}/device.hpp', 'extern __shared__', ';', 'uint8_t* const shared = emu::shared;')
patch(f'{family}/device.hpp', 'asm volatile("" : "+l"', ';', '')
patch('narrow/multiply.hpp', 'asm volatile("ld.shared.u8', ');', 'bits = *emu::at(from, 1);')
patch('narrow/multiply.hpp', 'asm volatile("wgmma.wait_group', ');', '')
patch('narrow/multiply.hpp', 'asm volatile("mov.b32', ');', 'a[i / 4 / steps][i / 4 % steps][i % 4] = 0;')
patch('narrow/factors.hpp', 'asm volatile("cp.async.ca', ');', 'copy_async_4(to + unit * line + (first + lane_) * 4, from);')
patch('narrow/factors.hpp', 'asm volatile("st.shared.u16', ');', 'emu::store(there, uint16_t(bits[r]));')
patch('narrow/codes.hpp', 'asm("{', ');', '''const __half x[2] = {__float2half(e4m3(two & 255)), __float2half(e4m3(two >> 8 & 255))};
  memcpy(&halves, x, 4);''')
