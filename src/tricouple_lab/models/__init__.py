"""Networks. Everything that imports timm, torchvision or open_clip comes through here."""

from tricouple.torchvision_ops import declare_missing

# torchvision, which they import, refuses a torch that it was not built for.
declare_missing()
