"""What is made of the stored notebooks: a site, slides, a handout. No notebook runs for it.

clock            what the parts of TEACHING.md take in a room
gpu_tiles        tiles of matrix products, measured on a GPU
handout          lessons without answers, with blanks where a teacher types
hooks            what MkDocs calls: pages that are made, links, formulas as MathML
links            dead links of a site, and what it loads from elsewhere
pages            lessons, answers and the API as Markdown pages for MkDocs; page.md.j2 is their template
ranges           what measured cells gave on known machines
scoreboard       the course's stored run of ResNet-18 in every runtime
slides           a lesson's headings, figures, questions and recap as slides
mkdocs.yml       the settings of the site, but for its menu
site.css         how outputs of cells and tables look
"""
