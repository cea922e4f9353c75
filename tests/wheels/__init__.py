"""The README's lines in environments that hold nothing but the built wheels and what they ask for: `make wheels-test`.

`apart`   a machine of its own: loopback and no other network, and no checkout
`bounds`  the oldest versions that the wheels allow, by their own metadata
`imports` a program that imports whatever the wheels' modules do
`lines`   what README and documents tell people to type, taken from there
`runs`    wheels, environments, and the lines in them, one environment after the other
"""
